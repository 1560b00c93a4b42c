// The pipelined stream over the wire.
#include <gmock/gmock.h>

#include <map>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

using testing::HasSubstr;

// One Execute stream and what has come back on it.
class Stream {
 public:
  explicit Stream(const WireClient& client) {
    client.Prepare(context_);
    stream_ = client.compute->Execute(&context_);
  }
  bool Send(const v1::ExecuteRequest& request) { return stream_->Write(request); }
  bool Send(const std::string& text) { return Send(Parse<v1::ExecuteRequest>(text)); }
  // Reads until everything up to `number` is done; false if the stream ends before.
  bool ReadUntilDone(uint64_t number) {
    while (done_through < number) {
      if (!ReadOne()) {
        return false;
      }
    }
    return true;
  }
  // Reads until command `number` was answered.
  bool ReadUntilReplied(uint64_t number) {
    while (replies.count(number) == 0) {
      if (!ReadOne()) {
        return false;
      }
    }
    return true;
  }
  // Half-closes, reads to the end.
  grpc::Status Finish() {
    stream_->WritesDone();
    while (ReadOne()) {
    }
    return stream_->Finish();
  }
  void Cancel() { context_.TryCancel(); }

  uint64_t done_through = 0;
  std::map<uint64_t, v1::CommandReply> replies;
  v1::Window window;

 private:
  bool ReadOne() {
    v1::ExecuteReply reply;
    if (!stream_->Read(&reply)) {
      return false;
    }
    EXPECT_GE(reply.done_through(), done_through);
    done_through = reply.done_through();
    window = reply.window();
    for (const v1::CommandReply& command : reply.replies()) {
      EXPECT_EQ(replies.count(command.number()), 0u) << "a second reply for " << command.number();
      replies[command.number()] = command;
    }
    return true;
  }

  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ExecuteRequest, v1::ExecuteReply>> stream_;
};

class ExecuteTest : public ServerTest {
 protected:
  void SetUp() override { Open(); }
  void Open() { client = std::make_unique<SessionClient>(server().channel()); }
  void Restart() {
    client.reset();
    StopServer();
    Open();
  }
  void TearDown() override {
    client.reset();
    ServerTest::TearDown();
  }
  std::unique_ptr<SessionClient> client;
};

TEST_F(ExecuteTest, AThousandDependentCommandsInOneMessageAreAnsweredByOneFetch) {
  v1::ExecuteRequest request;
  const auto add = [&request] {
    v1::Command* const command = request.add_commands();
    command->set_number(static_cast<uint64_t>(request.commands_size()));
    return command;
  };
  constexpr uint64_t kFirst = uint64_t{1} << 32;
  *add()->mutable_create() =
      Parse<v1::Create>(absl::StrFormat("id: %d shape: 4 device: 'gpu:0' fill: 0", kFirst));
  *add()->mutable_create() =
      Parse<v1::Create>(absl::StrFormat("id: %d shape: 4 device: 'gpu:0' fill: 1", kFirst + 1));
  for (uint64_t i = 2; i < 999; ++i) {
    *add()->mutable_op() =
        Parse<v1::Op>(absl::StrFormat("name: 'add' inputs: [%d, %d] id: %d",
                                      kFirst + (i == 2 ? 0 : i - 1), kFirst + 1, kFirst + i));
  }
  add()->mutable_fetch()->set_id(kFirst + 998);
  ASSERT_EQ(request.commands_size(), 1000);
  Stream stream(*client);
  ASSERT_TRUE(stream.Send(request));
  ASSERT_TRUE(stream.ReadUntilReplied(1000));
  ASSERT_EQ(stream.replies.size(), 1u);  // Only what was asked for.
  EXPECT_EQ(stream.replies.at(1000).fetched().values().numbers(0), 997);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ExecuteTest, FailuresComeOnceEachWithTheirOrigin) {
  Stream stream(*client);
  ASSERT_TRUE(stream.Send(R"(
    commands { number: 1 create { id: 1 shape: 2 device: "gpu:0" } }
    commands { number: 2 create { id: 2 shape: 3 device: "gpu:0" } }
    commands { number: 3 op { name: "add" inputs: [1, 2] id: 3 } }
    commands { number: 4 op { name: "neg" inputs: 3 id: 4 } }
    commands { number: 5 op { name: "neg" inputs: 1 id: 5 } }
    commands { number: 6 fetch { id: 4 } }
    commands { number: 7 op { name: "shout" inputs: 1 id: 7 } }
    commands { number: 8 delete { ids: 99 } }
    commands { number: 9 copy { source: 5 device: "gpu:1" id: 9 } }
    commands { number: 10 }
    commands { number: 11 sync {} })"));
  ASSERT_TRUE(stream.ReadUntilDone(11));
  ASSERT_EQ(stream.replies.size(), 7u);
  EXPECT_EQ(stream.replies.at(3).error().reason(), v1::OpError::SHAPE_MISMATCH);
  EXPECT_EQ(stream.replies.at(3).error().command_number(), 3u);
  for (const uint64_t dependent : {4, 6}) {
    const v1::OpError& error = stream.replies.at(dependent).error();
    EXPECT_EQ(error.reason(), v1::OpError::INPUT_FAILED);
    EXPECT_EQ(error.origin_tensor(), 3u);
    EXPECT_EQ(error.command_number(), 3u);
    EXPECT_THAT(error.message(), HasSubstr("[2]"));
  }
  EXPECT_EQ(stream.replies.at(7).error().reason(), v1::OpError::NO_SUCH_OP);
  EXPECT_EQ(stream.replies.at(8).error().reason(), v1::OpError::NO_SUCH_TENSOR);
  EXPECT_EQ(stream.replies.at(9).tensor().device(), "gpu:1");
  EXPECT_EQ(stream.replies.at(9).receipt().size_bytes(), 8u);
  EXPECT_EQ(stream.replies.at(10).error().code(), grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ExecuteTest, HalfCloseAnswersEverything) {
  // Many times: the end of the last command and the half-close meet in all orders.
  uint64_t number = 0;
  for (int round = 0; round < 300; ++round) {
    Stream stream(*client);
    v1::ExecuteRequest request;
    for (int i = 0; i <= round % 7; ++i) {
      v1::Command* const command = request.add_commands();
      command->set_number(++number);
      command->mutable_create()->set_id(number);
      command->mutable_create()->set_device("gpu:1");
    }
    v1::Command* const last = request.add_commands();
    last->set_number(++number);
    if (round % 2 == 0) {
      last->mutable_fetch()->set_id(number - 1);
    } else {
      last->mutable_delete_()->add_ids(number - 1);
    }
    request.set_received_through(number - 1);
    ASSERT_TRUE(stream.Send(request));
    const grpc::Status status = stream.Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(stream.done_through, number) << "round " << round;
    // The round before's reply may come again: it was not acknowledged when this stream began.
    ASSERT_EQ(stream.replies.count(number), round % 2 == 0 ? 1u : 0u);
  }
}

TEST_F(ExecuteTest, ASecondStreamTakesOverAndTheFirstIsAborted) {
  Stream first(*client);
  ASSERT_TRUE(
      first.Send("commands { number: 1 create { id: 1 fill: 5 } } commands { number: 2 sync {} }"));
  ASSERT_TRUE(first.ReadUntilDone(2));
  Stream second(*client);
  ASSERT_TRUE(second.Send("commands { number: 3 fetch { id: 1 } }"));
  ASSERT_TRUE(second.ReadUntilReplied(3));
  EXPECT_EQ(second.replies.at(3).fetched().values().numbers(0), 5);
  const grpc::Status status = first.Finish();
  EXPECT_EQ(status.error_code(), grpc::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("took over"));
  EXPECT_TRUE(second.Finish().ok());
}

TEST_F(ExecuteTest, ReplaysAreNotRunAgain) {
  const std::string batch = R"(
    commands { number: 1 create { id: 1 shape: 2 fill: 1 } }
    commands { number: 2 op { name: "neg" inputs: 1 id: 2 } }
    commands { number: 3 delete { ids: 1 } })";
  {
    Stream stream(*client);
    ASSERT_TRUE(stream.Send(batch));
    EXPECT_TRUE(stream.Finish().ok());
  }
  // The client lost the connection and does not know how far it came.
  Stream stream(*client);
  ASSERT_TRUE(stream.Send(batch + "commands { number: 4 fetch { id: 2 } }"));
  ASSERT_TRUE(stream.ReadUntilReplied(4));
  ASSERT_EQ(stream.replies.size(), 1u);
  EXPECT_EQ(stream.replies.at(4).fetched().values().numbers(0), -1);
  EXPECT_EQ(client->Session().reply.commands_done(), 3u);  // Create, op, fetch: once each.
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ExecuteTest, AReattachedClientGetsTheRepliesItDidNotAcknowledge) {
  {
    Stream stream(*client);
    ASSERT_TRUE(stream.Send(R"(
      commands { number: 1 create { id: 1 fill: 1 } }
      commands { number: 2 fetch { id: 1 } }
      commands { number: 3 fetch { id: 1 raw: true } })"));
    ASSERT_TRUE(stream.ReadUntilReplied(2) && stream.ReadUntilReplied(3));
    stream.Cancel();
  }
  v1::AttachSessionRequest attach;
  attach.set_token(client->token());
  EXPECT_EQ(client->Call(*client->sessions, &v1::SessionService::Stub::AttachSession, attach)
                .reply.received_through(),
            3u);
  {
    Stream again(*client);
    ASSERT_TRUE(again.Send("received_through: 2"));
    ASSERT_TRUE(again.Finish().ok());
    // The acknowledgement may come after reply 2 was handed out again; 3 always is.
    EXPECT_EQ(again.replies.count(3), 1u);
  }
  Stream last(*client);
  ASSERT_TRUE(last.Send("received_through: 3 commands { number: 4 sync {} }"));
  ASSERT_TRUE(last.ReadUntilDone(4));
  EXPECT_TRUE(last.Finish().ok());
  Stream nothing(*client);
  EXPECT_TRUE(nothing.Finish().ok());
  EXPECT_EQ(nothing.replies.size(), 0u);
}

TEST_F(ExecuteTest, NumbersGoUpWithoutGaps) {
  for (const std::string number : {"5", "0", "18446744073709551615"}) {
    Stream stream(*client);
    ASSERT_TRUE(stream.Send("commands { number: " + number + " sync {} }"));
    const grpc::Status status = stream.Finish();
    EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("command number " + number));
  }
  // What came before the gap counts.
  Stream stream(*client);
  ASSERT_TRUE(
      stream.Send("commands { number: 1 create { id: 1 } } commands { number: 3 sync {} }"));
  EXPECT_EQ(stream.Finish().error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_TRUE(client->Get(1).ok());
  Stream next(*client);
  ASSERT_TRUE(next.Send("commands { number: 2 sync {} }"));
  EXPECT_TRUE(next.ReadUntilDone(2));
  EXPECT_TRUE(next.Finish().ok());
}

TEST_F(ExecuteTest, AStreamOfAClosedSessionEnds) {
  Stream stream(*client);
  ASSERT_TRUE(
      stream.Send("commands { number: 1 create { id: 1 } } commands { number: 2 sync {} }"));
  ASSERT_TRUE(stream.ReadUntilDone(2));
  ASSERT_TRUE(client->Close().ok());
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND);
  EXPECT_EQ(DetailsFrom(status).reason(), v1::OpError::SESSION_EXPIRED);
  Stream late(*client);
  EXPECT_EQ(late.Finish().error_code(), grpc::NOT_FOUND);
}

TEST_F(ExecuteTest, TheWindowIsTold) {
  Stream stream(*client);
  ASSERT_TRUE(stream.Send("commands { number: 1 sync {} }"));
  ASSERT_TRUE(stream.ReadUntilDone(1));
  EXPECT_EQ(stream.window.commands(), Limits().commands_in_flight);
  EXPECT_EQ(stream.window.size_bytes(), Limits().message_bytes);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ExecuteTest, MoreThanTheWindowIsOnlyHeldBack) {
  options.limits.commands_in_flight = 16;
  Restart();
  Stream stream(*client);
  uint64_t number = 0;
  for (int batch = 0; batch < 200; ++batch) {
    v1::ExecuteRequest request;
    for (int i = 0; i < 32; ++i) {
      v1::Command* const command = request.add_commands();
      command->set_number(++number);
      *command->mutable_create() = Parse<v1::Create>("shape: 1000 device: 'gpu:0' fill: 1");
    }
    ASSERT_TRUE(stream.Send(request));
  }
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.done_through, number);
}

// A chain of 10,000 temporaries on a device that has room for four of them.
TEST_F(ExecuteTest, TenThousandTemporariesRunOnADeviceForFour) {
  constexpr int kElements = 16 << 10;
  options.gpu_memory_bytes = 4 * 4 * kElements;
  Restart();
  Stream stream(*client);
  uint64_t number = 0;
  v1::ExecuteRequest request;
  const auto add = [&] {
    v1::Command* const command = request.add_commands();
    command->set_number(++number);
    return command;
  };
  for (const double value : {1, 0}) {
    v1::Create* const create = add()->mutable_create();
    create->set_id(number);
    create->add_shape(kElements);
    create->set_device("gpu:0");
    create->set_fill(value);
  }
  for (uint64_t id = 3; id < 10'003; ++id) {
    v1::Op* const op = add()->mutable_op();
    op->set_name("add");
    op->add_inputs(1);
    op->add_inputs(id - 1);
    op->set_id(id);
    add()->mutable_delete_()->add_ids(id - 1);
    if (request.commands_size() >= 500) {
      ASSERT_TRUE(stream.Send(request));
      request.Clear();
    }
  }
  add()->mutable_op()->set_name("max");
  request.mutable_commands()->rbegin()->mutable_op()->add_inputs(10'002);
  request.mutable_commands()->rbegin()->mutable_op()->set_id(20'000);
  add()->mutable_fetch()->set_id(20'000);
  ASSERT_TRUE(stream.Send(request));
  const grpc::Status status = stream.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(stream.replies.size(), 1u);
  EXPECT_EQ(stream.replies.at(number).fetched().values().numbers(0), 10'000);
  EXPECT_LE(server().peak_bytes(1), options.gpu_memory_bytes);
}

TEST_F(ExecuteTest, RepliesNeverOutgrowAMessage) {
  // A client with gRPC's default limit of 4 MiB.
  const SessionClient small(
      grpc::CreateChannel(server().address(), grpc::InsecureChannelCredentials()));
  Stream stream(small);
  v1::ExecuteRequest request = Parse<v1::ExecuteRequest>(
      "commands { number: 1 create { id: 1 shape: 250000 device: 'gpu:0' fill: 1 } }");  // 1 MB
  for (uint64_t number = 2; number <= 13; ++number) {
    v1::Command* const command = request.add_commands();
    command->set_number(number);
    command->mutable_fetch()->set_id(1);
    command->mutable_fetch()->set_raw(number % 2 == 0);  // else 2 MB as numbers
  }
  ASSERT_TRUE(stream.Send(request));
  const grpc::Status status = stream.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stream.replies.size(), 12u);
  EXPECT_EQ(stream.done_through, 13u);
}

TEST_F(ExecuteTest, AClientThatVanishesHoldsNothingButItsHandles) {
  {
    Stream stream(*client);
    ASSERT_TRUE(stream.Send("commands { number: 1 create { id: 1 shape: 1000 device: 'gpu:0' } }"));
    stream.Cancel();
  }
  EXPECT_TRUE(Eventually([&] { return client->Session().reply.commands_queued() == 0; }));
  ASSERT_TRUE(client->Close().ok());
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

TEST_F(ExecuteTest, ADeadlineEndsAStreamAndNothingElse) {
  grpc::ClientContext context;
  context.AddMetadata("devserver-session", client->token());
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  const auto stream = client->compute->Execute(&context);
  ASSERT_TRUE(
      stream->Write(Parse<v1::ExecuteRequest>("commands { number: 1 create { id: 1 fill: 4 } }")));
  for (v1::ExecuteReply reply; stream->Read(&reply);) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  EXPECT_EQ(client->Numbers(1), (std::vector<double>{4}));
}

}  // namespace
}  // namespace devserver
