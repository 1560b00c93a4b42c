// Copies and their receipts: what was estimated, measured and simulated are three things, each with
// its basis.
#include <gmock/gmock.h>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

class CopyTest : public ServerTest {
 protected:
  void SetUp() override {
    client = std::make_unique<WireClient>(server().channel());
    ASSERT_TRUE(client->Create("id: 1 shape: 1000000 device: 'gpu:0' fill: 3").ok());
    ASSERT_TRUE(client->Create("id: 2 shape: 1000000 device: 'cpu:0' fill: 4").ok());
  }
  v1::Receipt Copy(const std::string& text) {
    const auto copied = client->Copy(text);
    EXPECT_TRUE(copied.ok()) << copied.message();
    return copied.reply.receipt();
  }

  std::unique_ptr<WireClient> client;
};

TEST_F(CopyTest, BetweenGpusGoesOverNvlink) {
  const v1::Receipt receipt = Copy("source: 1 device: 'GPU:1' id: 10");
  EXPECT_EQ(receipt.size_bytes(), 4'000'000u);
  ASSERT_EQ(receipt.legs_size(), 1);
  EXPECT_EQ(receipt.legs(0).source(), "gpu:0");
  EXPECT_EQ(receipt.legs(0).target(), "gpu:1");
  EXPECT_EQ(receipt.legs(0).medium(), v1::Leg::NVLINK);
  EXPECT_EQ(receipt.legs(0).estimated().basis(), v1::Seconds::CONFIGURED);
  EXPECT_EQ(receipt.estimated().basis(), v1::Seconds::CONFIGURED);
  EXPECT_EQ(receipt.estimated().value(), receipt.legs(0).estimated().value());
  // Between 4 MB at 50 GB/s (a V100's two links) and at 10 GB/s.
  EXPECT_GT(receipt.estimated().value(), 4e6 / 100e9);
  EXPECT_LT(receipt.estimated().value(), 4e6 / 10e9);
  EXPECT_EQ(receipt.measured().basis(), v1::Seconds::CLOCK);
  EXPECT_GT(receipt.measured().value(), 0);
  EXPECT_EQ(receipt.simulated().basis(), v1::Seconds::MODEL);
  EXPECT_EQ(receipt.simulated().value(), receipt.estimated().value());
  EXPECT_EQ(receipt.measured_over_estimated(), 0);  // The estimate is of simulated time.
  EXPECT_EQ(client->Get(10).reply.device(), "gpu:1");
}

TEST_F(CopyTest, ToAndFromTheHostGoesOverPcie) {
  for (const std::string text : {"source: 1 device: 'cpu'", "source: 2 device: 'gpu:1'"}) {
    const v1::Receipt receipt = Copy(text);
    ASSERT_EQ(receipt.legs_size(), 1);
    EXPECT_EQ(receipt.legs(0).medium(), v1::Leg::PCIE);
    EXPECT_TRUE(receipt.has_simulated());
  }
}

TEST_F(CopyTest, WithinTheHostHasNoEstimateAndNoSimulatedTime) {
  const v1::Receipt receipt = Copy("source: 2 device: 'cpu:0'");
  EXPECT_EQ(receipt.legs(0).medium(), v1::Leg::MEMORY);
  EXPECT_EQ(receipt.estimated().basis(), v1::Seconds::UNKNOWN);
  EXPECT_EQ(receipt.measured().basis(), v1::Seconds::CLOCK);
  EXPECT_FALSE(receipt.has_simulated());
  EXPECT_EQ(receipt.measured_over_estimated(), 0);
}

TEST_F(CopyTest, IsAlwaysANewTensorWithTheSameBytes) {
  const auto copied = client->Copy("source: 1 device: 'gpu:0'");
  ASSERT_TRUE(copied.ok()) << copied.message();
  EXPECT_NE(copied.reply.tensor().id(), 1u);
  EXPECT_EQ(server().used_bytes(1), 8'000'000u);
  ASSERT_TRUE(client->Delete({1}).ok());
  const auto sum =
      client->Apply(absl::StrFormat("name: 'sum' inputs: %d id: 20", copied.reply.tensor().id()));
  ASSERT_TRUE(sum.ok()) << sum.message();
  EXPECT_EQ(client->Numbers(20), (std::vector<double>{3'000'000}));
}

TEST_F(CopyTest, EnsureOnIsTheTensorItselfWhereItIsAlready) {
  const auto same = client->EnsureOn("source: 1 device: 'cuda:0'");
  ASSERT_TRUE(same.ok()) << same.message();
  EXPECT_FALSE(same.reply.copied());
  EXPECT_EQ(same.reply.tensor().id(), 1u);
  EXPECT_FALSE(same.reply.has_receipt());
  EXPECT_EQ(server().used_bytes(1), 4'000'000u);
  const auto other = client->EnsureOn("source: 1 device: 'gpu:1' id: 30");
  ASSERT_TRUE(other.ok()) << other.message();
  EXPECT_TRUE(other.reply.copied());
  EXPECT_EQ(other.reply.tensor().id(), 30u);
  EXPECT_EQ(other.reply.receipt().legs(0).medium(), v1::Leg::NVLINK);
}

TEST_F(CopyTest, ABoundAboveTheQuoteLetsItThrough) {
  const double quote = Copy("source: 1 device: 'gpu:1'").estimated().value();
  EXPECT_TRUE(
      client->Copy(absl::StrFormat("source: 1 device: 'gpu:1' max_seconds: %.17g", quote)).ok());
  for (const auto& refused :
       {client
            ->Copy(absl::StrFormat("id: 40 source: 1 device: 'gpu:1' max_seconds: %.17g",
                                   quote * 0.999))
            .status,
        client
            ->EnsureOn(absl::StrFormat("id: 40 source: 1 device: 'gpu:1' max_seconds: %.17g",
                                       quote * 0.999))
            .status}) {
    EXPECT_EQ(refused.error_code(), grpc::FAILED_PRECONDITION);
    EXPECT_EQ(DetailsFrom(refused).reason(), v1::OpError::TOO_EXPENSIVE);
  }
  EXPECT_EQ(client->Get(40).code(), grpc::NOT_FOUND);
}

TEST_F(CopyTest, TheSessionKeepsALedger) {
  const SessionClient session(server().channel());
  ASSERT_TRUE(session.Create("id: 1 shape: 1000 device: 'gpu:0'").ok());
  EXPECT_EQ(session.Session().reply.bytes_copied(), 0u);
  const auto copied = session.Copy("source: 1 device: 'gpu:1'");
  const v1::Session ledger = session.Session().reply;
  EXPECT_EQ(ledger.bytes_copied(), 4000u);
  EXPECT_EQ(ledger.copy_seconds_measured(), copied.reply.receipt().measured().value());
  EXPECT_EQ(ledger.copy_seconds_simulated(), copied.reply.receipt().simulated().value());
  EXPECT_EQ(ledger.bytes_by_device().at("gpu:0"), 4000u);
  EXPECT_EQ(ledger.bytes_by_device().at("gpu:1"), 4000u);
}

TEST_F(CopyTest, TheDevicesClocksGoOnBySimulatedTimeOnly) {
  const auto clock = [&](const std::string& name) {
    v1::GetDeviceRequest request;
    request.set_name(name);
    return client->Call(*client->devices, &v1::DeviceService::Stub::GetDevice, request)
        .reply.simulated_seconds();
  };
  const double before = clock("gpu:1");
  const v1::Receipt receipt = Copy("source: 1 device: 'gpu:1'");
  EXPECT_DOUBLE_EQ(clock("gpu:1") - before, receipt.simulated().value());
  EXPECT_EQ(clock("cpu:0"), 0);
}

// GPUs without NVLink meet over the host.
TEST_F(CopyTest, WithoutNvlinkThereAreTwoLegs) {
  StopServer();
  options.gpu_model = "L4";
  client = std::make_unique<WireClient>(server().channel());
  ASSERT_TRUE(client->Create("id: 1 shape: 1000000 device: 'gpu:0' fill: 3").ok());
  const v1::Receipt receipt = Copy("source: 1 device: 'gpu:1'");
  ASSERT_EQ(receipt.legs_size(), 2);
  EXPECT_EQ(receipt.legs(0).target(), "cpu:0");
  EXPECT_EQ(receipt.legs(1).source(), "cpu:0");
  EXPECT_EQ(receipt.legs(1).medium(), v1::Leg::PCIE);
  EXPECT_DOUBLE_EQ(receipt.estimated().value(),
                   receipt.legs(0).estimated().value() + receipt.legs(1).estimated().value());
}

}  // namespace
}  // namespace devserver
