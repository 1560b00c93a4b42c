// ListTensors: pages, filters, and who holds the memory.
#include <gmock/gmock.h>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

class ListingTest : public ServerTest {
 protected:
  void SetUp() override { client = std::make_unique<WireClient>(server().channel()); }

  // All ids, page by page.
  std::vector<uint64_t> ListedIds(const WireClient& from, const std::string& text, int page_size) {
    std::vector<uint64_t> ids;
    std::string token;
    do {
      const auto page =
          from.List(absl::StrFormat("%s page_size: %d page_token: '%s'", text, page_size, token));
      EXPECT_TRUE(page.ok()) << page.message();
      EXPECT_LE(page.reply.tensors_size(), page_size);
      for (const v1::TensorListing& listing : page.reply.tensors()) {
        ids.push_back(listing.tensor().id());
      }
      token = page.reply.next_page_token();
    } while (!token.empty());
    return ids;
  }

  std::unique_ptr<WireClient> client;
};

TEST_F(ListingTest, EveryTensorIsOnExactlyOnePage) {
  std::vector<uint64_t> made;
  for (uint64_t id = 3; id < 60; id += 3) {
    ASSERT_TRUE(client->Create(absl::StrFormat("id: %d device: 'gpu:%d'", id, id % 2)).ok());
    made.push_back(id);
  }
  for (const int page_size : {1, 2, 18, 19, 20, 1000}) {
    SCOPED_TRACE(page_size);
    EXPECT_EQ(ListedIds(*client, "", page_size), made);
  }
  // The filter may leave out any number of tensors between two of a page.
  std::vector<uint64_t> odd;
  std::ranges::copy_if(made, std::back_inserter(odd), [](uint64_t id) { return id % 2 == 1; });
  for (const int page_size : {1, 2, 9, 10}) {
    EXPECT_EQ(ListedIds(*client, "device: 'GPU:1'", page_size), odd);
  }
}

TEST_F(ListingTest, PagesAreBounded) {
  std::string batch;
  for (int i = 0; i < 1005; ++i) {
    batch += "commands { create {} } ";
  }
  ASSERT_TRUE(client->Run(batch).ok());
  EXPECT_EQ(client->List("").reply.tensors_size(), 100);
  EXPECT_EQ(client->List("page_size: 4000000000").reply.tensors_size(), 1000);
}

TEST_F(ListingTest, APageTokenOutlivesTheTensorItPointsTo) {
  for (int id = 1; id <= 4; ++id) {
    ASSERT_TRUE(client->Create(absl::StrFormat("id: %d", id)).ok());
  }
  const auto first = client->List("page_size: 2");
  ASSERT_TRUE(client->Delete({1, 2, 3}).ok());
  const auto rest =
      client->List(absl::StrFormat("page_token: '%s'", first.reply.next_page_token()));
  ASSERT_EQ(rest.reply.tensors_size(), 1);
  EXPECT_EQ(rest.reply.tensors(0).tensor().id(), 4u);
}

TEST_F(ListingTest, AListingTellsWhatATensorIs) {
  ASSERT_TRUE(client->Create("shape: [2, 3] dtype: BF16 device: 'gpu:1' label: 'weights'").ok());
  const auto list = client->List("");
  ASSERT_EQ(list.reply.tensors_size(), 1);
  const v1::TensorListing& listing = list.reply.tensors(0);
  EXPECT_EQ(listing.tensor().label(), "weights");
  EXPECT_EQ(listing.tensor().dtype(), v1::BF16);
  EXPECT_EQ(listing.tensor().size_bytes(), 12u);
  EXPECT_THAT(listing.session(), testing::StartsWith("default"));
  EXPECT_GE(listing.age_seconds(), listing.idle_seconds());
  EXPECT_GE(listing.idle_seconds(), 0);
}

TEST_F(ListingTest, AllSessionsAreShownToWhoAsks) {
  const SessionClient first(server().channel(), "name: 'first'");
  const SessionClient second(server().channel(), "name: 'second'");
  ASSERT_TRUE(client->Create("").ok());
  ASSERT_TRUE(first.Create("").ok());
  ASSERT_TRUE(first.Create("").ok());
  ASSERT_TRUE(second.Create("").ok());
  EXPECT_EQ(second.List("").reply.tensors_size(), 1);
  const auto all = second.List("all_sessions: true");
  std::vector<std::string> owners;
  for (const v1::TensorListing& listing : all.reply.tensors()) {
    owners.push_back(listing.session());
  }
  std::ranges::sort(owners);
  EXPECT_THAT(owners, testing::ElementsAre("default 127.0.0.1", "first", "first", "second"));
  EXPECT_EQ(ListedIds(second, "all_sessions: true", 1).size(), 4u);
  EXPECT_EQ(ListedIds(second, "all_sessions: true", 3).size(), 4u);
}

TEST_F(ListingTest, OpsAreListedWithTheirDTypesByDevice) {
  const auto ops = client->Call(*client->devices, &v1::DeviceService::Stub::ListOps,
                                Parse<v1::ListOpsRequest>("device: 'gpu:1'"));
  ASSERT_TRUE(ops.ok()) << ops.message();
  for (const v1::OpDescription& op : ops.reply.ops()) {
    SCOPED_TRACE(op.name());
    EXPECT_FALSE(op.result().empty());
    EXPECT_FALSE(op.error_bound().empty());
    ASSERT_EQ(op.dtypes_by_device_size(), 1);
    EXPECT_GT(op.dtypes_by_device().at("gpu:1").dtypes_size(), 0);
  }
  EXPECT_EQ(static_cast<size_t>(ops.reply.ops_size()), AllOps().size());
}

TEST_F(ListingTest, DevicesAreListedWithTheirMemory) {
  ASSERT_TRUE(client->Create("shape: 1000 device: 'gpu:0'").ok());
  const auto devices = client->Call(*client->devices, &v1::DeviceService::Stub::ListDevices,
                                    v1::ListDevicesRequest());
  ASSERT_TRUE(devices.ok()) << devices.message();
  ASSERT_EQ(devices.reply.devices_size(), 3);
  const v1::Device& gpu = devices.reply.devices(1);
  EXPECT_EQ(gpu.name(), "gpu:0");
  EXPECT_EQ(gpu.kind(), v1::Device::SIMULATED);
  EXPECT_EQ(gpu.model(), "Tesla V100-SXM2-16GB");
  EXPECT_EQ(gpu.memory_limit_bytes(), uint64_t{256} << 20);
  EXPECT_EQ(gpu.memory_used_bytes(), 4000u);
  EXPECT_GE(gpu.memory_peak_bytes(), 4000u);
  EXPECT_EQ(gpu.tensors(), 1u);
  EXPECT_EQ(gpu.health(), v1::Device::HEALTHY);
  EXPECT_FALSE(devices.reply.no_gpu_reason().empty());
  EXPECT_EQ(devices.reply.server(), "test");
}

TEST_F(ListingTest, AWatchSendsTheListAgainAndAgain) {
  grpc::ClientContext context;
  client->Prepare(context);
  const auto reader = client->devices->WatchDevices(
      &context, Parse<v1::WatchDevicesRequest>("interval_seconds: 0.05"));
  v1::ListDevicesReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  EXPECT_EQ(reply.devices(1).memory_used_bytes(), 0u);
  ASSERT_TRUE(client->Create("shape: 1000 device: 'gpu:0'").ok());
  do {
    ASSERT_TRUE(reader->Read(&reply));
  } while (reply.devices(1).memory_used_bytes() != 4000u);
  context.TryCancel();
  while (reader->Read(&reply)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::CANCELLED);
}

}  // namespace
}  // namespace devserver
