// Ids that the client chooses: the same command with the same id is a replay, another command with
// it is refused.
#include <gmock/gmock.h>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

class ReplayTest : public ServerTest {
 protected:
  void SetUp() override {
    client = std::make_unique<SessionClient>(server().channel());
    ASSERT_TRUE(client->Create("id: 1 shape: [2, 2] device: 'gpu:0' fill: 1").ok());
    ASSERT_TRUE(client->Create("id: 2 shape: [2, 2] device: 'gpu:0' fill: 2").ok());
  }
  void TearDown() override {
    client.reset();
    ServerTest::TearDown();
  }
  uint64_t CommandsRun() const { return client->Session().reply.commands_done(); }

  std::unique_ptr<SessionClient> client;
};

// Each call, made twice, gives the same tensor and runs once.
TEST_F(ReplayTest, TheSameCommandIsNotRunTwice) {
  const std::vector<std::function<Outcome<v1::TensorReply>()>> calls = {
      [&] { return client->Create("id: 100 shape: 3 device: 'gpu:0' uniform { seed: 5 }"); },
      [&] { return client->Create("id: 101 shape: 2 values { numbers: [1, 2] }"); },
      [&] { return client->MatMul("id: 102 a: 1 b: 2 transpose_a: true"); },
      [&] { return client->Dense("id: 103 x: 1 w: 2 activation: TANH"); },
      [&] { return client->Apply("id: 104 name: 'sum' inputs: 1 attributes { axes: 0 }"); },
      [&] { return client->Copy("id: 105 source: 1 device: 'gpu:1'"); },
  };
  for (const auto& call : calls) {
    const auto first = call();
    ASSERT_TRUE(first.ok()) << first.message();
    SCOPED_TRACE(first.reply.tensor().id());
    const uint64_t run = CommandsRun();
    const uint64_t used = server().used_bytes();
    const auto again = call();
    ASSERT_TRUE(again.ok()) << again.message();
    EXPECT_EQ(again.reply.SerializeAsString(), first.reply.SerializeAsString());
    EXPECT_EQ(CommandsRun(), run);
    EXPECT_TRUE(server().UsedBytesBecome(used));
  }
}

TEST_F(ReplayTest, AnotherCommandWithTheIdIsRefused) {
  ASSERT_TRUE(client->Create("id: 100 shape: 3 device: 'gpu:0' uniform { seed: 5 }").ok());
  ASSERT_TRUE(client->Apply("id: 104 name: 'sum' inputs: 1 attributes { axes: 0 }").ok());
  const std::vector<Outcome<v1::TensorReply>> refused = {
      client->Create("id: 100 shape: 3 device: 'gpu:0' uniform { seed: 6 }"),
      client->Create("id: 100 shape: 3 device: 'gpu:1' uniform { seed: 5 }"),
      client->Create("id: 100 shape: 4 device: 'gpu:0' uniform { seed: 5 }"),
      client->Create("id: 100 shape: 3 device: 'gpu:0' normal { seed: 5 }"),
      client->Create("id: 100 shape: 3 device: 'gpu:0' values { numbers: [1, 2, 3] }"),
      client->Apply("id: 100 name: 'neg' inputs: 1"),
      client->Copy("id: 100 source: 1 device: 'gpu:1'"),
      client->Apply("id: 104 name: 'sum' inputs: 2 attributes { axes: 0 }"),
      client->Apply("id: 104 name: 'mean' inputs: 1 attributes { axes: 0 }"),
      client->Apply("id: 104 name: 'sum' inputs: 1 attributes { axes: 1 }"),
      client->Apply("id: 104 name: 'sum' inputs: 1"),
  };
  for (size_t i = 0; i < refused.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(refused[i].code(), grpc::ALREADY_EXISTS);
    EXPECT_EQ(refused[i].error().reason(), v1::OpError::DUPLICATE_ID);
    EXPECT_THAT(refused[i].message(), testing::HasSubstr(i < 7 ? "tensor 100" : "tensor 104"));
  }
  EXPECT_EQ(client->List("").reply.tensors_size(), 4);
}

TEST_F(ReplayTest, AReplayedRunGivesTheRecordedResults) {
  const std::string batch = R"(
    commands { create { id: 100 shape: 2 device: "gpu:0" fill: 5 } }
    commands { op { name: "neg" inputs: 100 id: 101 } }
    commands { fetch { id: 101 } })";
  const auto first = client->Run(batch);
  ASSERT_TRUE(first.ok()) << first.message();
  const uint64_t run = CommandsRun();
  const auto again = client->Run(batch);
  ASSERT_TRUE(again.ok()) << again.message();
  ASSERT_EQ(again.reply.replies_size(), 3);
  EXPECT_THAT(again.reply.replies(2).fetched().values().numbers(), testing::ElementsAre(-5, -5));
  EXPECT_EQ(CommandsRun(), run);
}

TEST_F(ReplayTest, ADeletedIdIsFreeAgain) {
  ASSERT_TRUE(client->Create("id: 100 fill: 5").ok());
  ASSERT_TRUE(client->Delete({100}).ok());
  ASSERT_TRUE(client->Create("id: 100 fill: 6").ok());
  EXPECT_EQ(client->Numbers(100), (std::vector<double>{6}));
}

TEST_F(ReplayTest, TheServersOwnIdsGoAroundTheClients) {
  ASSERT_TRUE(client->Create("id: 4").ok());
  EXPECT_EQ(client->Create("").reply.tensor().id(), 3u);
  EXPECT_EQ(client->Create("").reply.tensor().id(), 5u);
  ASSERT_TRUE(client->Create("id: 18446744073709551615 fill: 9").ok());
  EXPECT_EQ(client->Numbers(~uint64_t{0}), (std::vector<double>{9}));
}

TEST_F(ReplayTest, WithoutAnIdTheSameCommandMakesAnotherTensor) {
  const uint64_t first = client->Create("fill: 1").reply.tensor().id();
  EXPECT_NE(client->Create("fill: 1").reply.tensor().id(), first);
}

}  // namespace
}  // namespace devserver
