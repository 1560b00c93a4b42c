// The Execute stream's memory of itself, without a wire.
#include "server/session/execution.h"

#include "tests/session/session_fixture.h"

namespace devserver {
namespace {

// A stream that only remembers what it was told.
class RecordingStream final : public Execution::Listener {
 public:
  explicit RecordingStream(Execution& execution) : execution_(execution) {}

  void OnProgress() override {
    MutexLock lock(&mu_);
    ++progress_;
  }
  void OnDetached(const absl::Status& status) override {
    MutexLock lock(&mu_);
    detached_ = status;
  }
  uint64_t progress() const {
    MutexLock lock(&mu_);
    return progress_;
  }
  absl::Status detached() const {
    MutexLock lock(&mu_);
    return detached_;
  }
  // Takes all there is to send; checks that what is done was answered before.
  std::vector<uint64_t> Take(size_t replies_max = 100, uint64_t bytes_max = 1 << 20) {
    std::vector<uint64_t> numbers;
    for (Execution::Outgoing outgoing;
         execution_.TakeOutgoing(replies_max, bytes_max, &outgoing);) {
      EXPECT_GE(outgoing.done_through, done_through);
      EXPECT_LE(outgoing.replies.size(), replies_max);
      done_through = outgoing.done_through;
      window_commands = outgoing.window_commands;
      for (Execution::Reply& reply : outgoing.replies) {
        numbers.push_back(reply.number);
        replies.push_back(std::move(reply));
      }
    }
    return numbers;
  }

  uint64_t done_through = 0;
  uint64_t window_commands = 0;
  std::vector<Execution::Reply> replies;

 private:
  Execution& execution_;
  // Guarded by mu_.
  mutable Mutex mu_;
  uint64_t progress_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status detached_ ABSL_GUARDED_BY(mu_);
};

class ExecutionTest : public SessionTest {
 protected:
  void Begin() {
    session = Open();
    stream = Attach();
  }
  void TearDown() override {
    stream.reset();
    SessionTest::TearDown();
  }
  std::shared_ptr<RecordingStream> Attach() {
    auto attached = std::make_shared<RecordingStream>(session->execution());
    session->execution().Attach(attached);
    return attached;
  }
  std::shared_ptr<Execution::Batch> BeginBatch(uint64_t acknowledged = 0) {
    return session->execution().BeginBatch(stream.get(), acknowledged);
  }
  void EndBatch(const std::shared_ptr<Execution::Batch>& batch) {
    session->execution().EndBatch(batch);
  }
  // Command `number` makes tensor `number`.
  void Create(const std::shared_ptr<Execution::Batch>& batch, uint64_t number,
              const std::string& device = "gpu:0", int64_t elements = 1) {
    ASSERT_TRUE(*batch->Accept(number));
    ASSERT_TRUE(Full(*session, number, elements, 1, device, RequestFor(batch, number)).ok());
  }
  void Fetch(const std::shared_ptr<Execution::Batch>& batch, uint64_t number, uint64_t id) {
    ASSERT_TRUE(*batch->Accept(number));
    const absl::StatusOr<TensorRef> tensor = session->Find(id);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    batch->Fetch(number, *tensor, false);
  }
  void Sync(const std::shared_ptr<Execution::Batch>& batch, uint64_t number) {
    ASSERT_TRUE(*batch->Accept(number));
    batch->Sync(number);
  }
  static Session::Request RequestFor(const std::shared_ptr<Execution::Batch>& batch,
                                     uint64_t number) {
    Session::Request request;
    request.command_number = number;
    request.leave_failed = true;
    request.done = batch->WhenDone(number);
    return request;
  }

  SessionRef session;
  std::shared_ptr<RecordingStream> stream;
};

TEST_F(ExecutionTest, ACommandThatAsksForNothingGetsNoReply) {
  Begin();
  const auto batch = BeginBatch();
  Create(batch, 1);
  Create(batch, 2);
  EndBatch(batch);
  Drain();
  EXPECT_THAT(stream->Take(), testing::IsEmpty());
  EXPECT_EQ(stream->progress(), 1u);  // Attach's.
}

TEST_F(ExecutionTest, ASyncTellsHowFarItIs) {
  Begin();
  const std::shared_ptr<QueueGate> gate = Hold(1);
  const auto batch = BeginBatch();
  Create(batch, 1);
  Sync(batch, 2);
  EndBatch(batch);
  EXPECT_THAT(stream->Take(), testing::IsEmpty());
  EXPECT_EQ(stream->done_through, 0u);
  gate->Open();
  Drain();
  EXPECT_GE(stream->progress(), 2u);
  EXPECT_THAT(stream->Take(), testing::IsEmpty());
  EXPECT_EQ(stream->done_through, 2u);
}

TEST_F(ExecutionTest, NumbersGoUpWithoutGaps) {
  Begin();
  const auto batch = BeginBatch();
  EXPECT_EQ(batch->Accept(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(batch->Accept(2).status().code(), absl::StatusCode::kInvalidArgument);
  Create(batch, 1);
  EXPECT_EQ(batch->Accept(3).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(batch->Accept(~uint64_t{0}).status().code(), absl::StatusCode::kInvalidArgument);
  Create(batch, 2);
  EndBatch(batch);
  EXPECT_EQ(session->execution().received_through(), 2u);
}

TEST_F(ExecutionTest, AReplayIsNotAcceptedAgain) {
  Begin();
  const auto first = BeginBatch();
  Create(first, 1);
  Create(first, 2);
  EndBatch(first);
  const auto again = BeginBatch();
  EXPECT_FALSE(*again->Accept(1));
  EXPECT_FALSE(*again->Accept(2));
  Sync(again, 3);
  EndBatch(again);
  Drain();
  stream->Take();
  EXPECT_EQ(stream->done_through, 3u);
  EXPECT_EQ(session->account().done(), 2u);
}

// Commands on a fast device are done before those on a slow one, but done_through waits for the
// batches in order.
TEST_F(ExecutionTest, DoneThroughNeverRunsAhead) {
  Begin();
  const std::shared_ptr<QueueGate> slow = Hold(1);
  const auto first = BeginBatch();
  Create(first, 1, "gpu:0");
  Create(first, 2, "gpu:1");
  EndBatch(first);
  const auto second = BeginBatch();
  Create(second, 3, "gpu:1");
  Fetch(second, 4, 3);
  Sync(second, 5);
  EndBatch(second);
  devices().queue(2).Drain();
  EXPECT_THAT(stream->Take(), testing::ElementsAre(4));  // The value itself comes at once.
  EXPECT_EQ(stream->done_through, 0u);
  slow->Open();
  Drain();
  EXPECT_THAT(stream->Take(), testing::IsEmpty());
  EXPECT_EQ(stream->done_through, 5u);
}

TEST_F(ExecutionTest, DoneThroughIsNeverHandedOutBeforeTheRepliesItCovers) {
  Begin();
  const auto batch = BeginBatch();
  Create(batch, 1);
  for (uint64_t number = 2; number <= 10; ++number) {
    Fetch(batch, number, 1);
  }
  EndBatch(batch);
  Drain();
  std::vector<uint64_t> seen;
  for (Execution::Outgoing outgoing; session->execution().TakeOutgoing(2, 1 << 20, &outgoing);) {
    for (const Execution::Reply& reply : outgoing.replies) {
      seen.push_back(reply.number);
    }
    EXPECT_LE(outgoing.replies.size(), 2u);
    EXPECT_LE(outgoing.done_through, seen.size() == 9 ? 10u : 0u);
  }
  EXPECT_EQ(seen.size(), 9u);
}

TEST_F(ExecutionTest, RepliesAreHandedOutByTheMessage) {
  Begin();
  const auto batch = BeginBatch();
  Create(batch, 1, "gpu:0", 1000);  // 8000 bytes as numbers
  for (uint64_t number = 2; number <= 6; ++number) {
    Fetch(batch, number, 1);
  }
  EndBatch(batch);
  Drain();
  std::vector<size_t> counts;
  for (Execution::Outgoing outgoing; session->execution().TakeOutgoing(100, 20'000, &outgoing);) {
    counts.push_back(outgoing.replies.size());
    EXPECT_EQ(outgoing.done_through, counts.size() == 3 ? 6u : 0u);
  }
  EXPECT_THAT(counts, testing::ElementsAre(2, 2, 1));
  // One that is larger than a message comes alone.
  stream = Attach();
  EXPECT_EQ(stream->Take(100, 1).size(), 5u);
}

TEST_F(ExecutionTest, AFailureIsRepliedOnceAndPoisonsItsResult) {
  Begin();
  const auto batch = BeginBatch();
  Create(batch, 1, "gpu:0", 2);
  Create(batch, 2, "gpu:0", 3);
  ASSERT_TRUE(*batch->Accept(3));
  const absl::Status refused =
      Apply(*session, OpCode::kAdd, {1, 2}, 3, RequestFor(batch, 3)).status();
  ASSERT_FALSE(refused.ok());
  batch->Refuse(3, refused);
  ASSERT_TRUE(*batch->Accept(4));
  const absl::Status dependent =
      Apply(*session, OpCode::kNeg, {3}, 4, RequestFor(batch, 4)).status();
  batch->Refuse(4, dependent);
  EndBatch(batch);
  Drain();
  EXPECT_THAT(stream->Take(), testing::UnorderedElementsAre(3, 4));
  EXPECT_EQ(stream->done_through, 4u);
  EXPECT_EQ(DetailsOf(dependent)->origin_tensor, 3u);
}

TEST_F(ExecutionTest, ANewStreamGetsWhatWasNotAcknowledged) {
  Begin();
  const auto batch = BeginBatch();
  Create(batch, 1);
  Fetch(batch, 2, 1);
  Fetch(batch, 3, 1);
  EndBatch(batch);
  Drain();
  EXPECT_THAT(stream->Take(), testing::UnorderedElementsAre(2, 3));
  const auto first = std::exchange(stream, Attach());
  EXPECT_EQ(first->detached().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(stream->Take(), testing::UnorderedElementsAre(2, 3));
  EXPECT_EQ(stream->done_through, 3u);
  EndBatch(BeginBatch(2));  // 2 is acknowledged.
  stream = Attach();
  EXPECT_THAT(stream->Take(), testing::ElementsAre(3));
  EndBatch(BeginBatch(3));
  stream = Attach();
  EXPECT_THAT(stream->Take(), testing::IsEmpty());
}

TEST_F(ExecutionTest, AcknowledgedRepliesAreForgottenWithTheirTensors) {
  Begin();
  const auto batch = BeginBatch();
  Create(batch, 1, "gpu:0", 1000);
  Fetch(batch, 2, 1);
  EndBatch(batch);
  Drain();
  stream->Take();
  stream->replies.clear();
  const uint64_t id = 1;
  ASSERT_TRUE(session->Delete({&id, 1}).ok());
  EXPECT_EQ(UsedBytes(), 4000u);  // The reply may have to be sent again.
  EndBatch(BeginBatch(2));
  EXPECT_EQ(UsedBytes(), 0u);
}

TEST_F(ExecutionTest, AStreamThatWasTakenOverMayNotGoOn) {
  Begin();
  const auto stale = BeginBatch();
  Create(stale, 1);
  const auto first = std::exchange(stream, Attach());
  EXPECT_EQ(stale->Accept(2).status().code(), absl::StatusCode::kAborted);
  EndBatch(stale);
  const auto batch = BeginBatch();
  Sync(batch, 2);
  EndBatch(batch);
  Drain();
  stream->Take();
  EXPECT_EQ(stream->done_through, 2u);
  // A late detach of the old one does not disturb the new one.
  session->execution().Detach(first.get());
  const uint64_t progress = stream->progress();
  const auto next = BeginBatch();
  Sync(next, 3);
  EndBatch(next);
  EXPECT_GT(stream->progress(), progress);
}

TEST_F(ExecutionTest, TheWindowPausesReading) {
  limits.commands_in_flight = 4;
  Begin();
  const std::shared_ptr<QueueGate> gate = Hold(1);
  const auto batch = BeginBatch();
  for (uint64_t number = 1; number <= 3; ++number) {
    Create(batch, number);
  }
  EndBatch(batch);
  EXPECT_TRUE(session->execution().MayRead());
  const auto last = BeginBatch();
  Create(last, 4);
  Create(last, 5);  // What was read whole is let in.
  EndBatch(last);
  EXPECT_FALSE(session->execution().MayRead());
  const uint64_t progress = stream->progress();
  gate->Open();
  Drain();
  EXPECT_GT(stream->progress(), progress);  // Told that it may go on.
  EXPECT_TRUE(session->execution().MayRead());
  const auto next = BeginBatch();
  Sync(next, 6);
  EndBatch(next);
  stream->Take();
  EXPECT_EQ(stream->window_commands, 4u);
}

TEST_F(ExecutionTest, ProgressIsReportedUnaskedEveryEighthOfTheWindow) {
  limits.commands_in_flight = 80;
  Begin();
  for (uint64_t number = 1; number <= 9; ++number) {
    const auto batch = BeginBatch();
    Create(batch, number);
    EndBatch(batch);
  }
  Drain();
  stream->Take();
  EXPECT_EQ(stream->done_through, 0u);
  const auto batch = BeginBatch();
  Create(batch, 10);
  EndBatch(batch);
  Drain();
  stream->Take();
  EXPECT_EQ(stream->done_through, 10u);
}

TEST_F(ExecutionTest, FlushAsksForAReportOfEverythingSent) {
  Begin();
  const auto batch = BeginBatch();
  Create(batch, 1);
  EndBatch(batch);
  session->execution().Flush();
  Drain();
  EXPECT_TRUE(session->execution().Idle());
  stream->Take();
  EXPECT_EQ(stream->done_through, 1u);
}

TEST_F(ExecutionTest, ClosingTheSessionEndsTheStream) {
  Begin();
  const std::shared_ptr<QueueGate> gate = Hold(1);
  const auto batch = BeginBatch();
  Create(batch, 1);
  EndBatch(batch);
  table().Close(session);
  EXPECT_EQ(DetailsOf(stream->detached())->reason, ErrorReason::kSessionExpired);
  gate->Open();
  Drain();
  const auto late = Attach();
  EXPECT_EQ(DetailsOf(late->detached())->reason, ErrorReason::kSessionExpired);
  EXPECT_THAT(late->Take(), testing::IsEmpty());
}

}  // namespace
}  // namespace devserver
