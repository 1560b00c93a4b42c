// A failure belongs to a tensor: whoever uses it gets the root cause, and nobody else suffers.
#include "absl/strings/match.h"
#include "tests/session/session_fixture.h"

namespace devserver {
namespace {

using testing::HasSubstr;

class FailureTest : public SessionTest {
 protected:
  // Tensor `id` on gpu:0, which fails on the device: the memory for it is there only once.
  absl::Status FailOnDevice(Session& session, uint64_t id) {
    EXPECT_TRUE(Full(session, 900, 10'000'000, 1).ok());  // 40 of 64 MB
    EXPECT_TRUE(Full(session, id, 10'000'000, 1).ok());
    Drain();
    return (*session.Find(id))->status();
  }
};

TEST_F(FailureTest, WhoUsesAFailedTensorGetsTheRootCause) {
  const SessionRef session = Open();
  const absl::Status root = FailOnDevice(*session, 1);
  EXPECT_EQ(DetailsOf(root)->reason, ErrorReason::kDeviceMemory);
  EXPECT_EQ(DetailsOf(root)->origin_tensor, 1u);
  EXPECT_THAT(std::string(root.message()), HasSubstr("full for tensor 1 on gpu:0"));
  const absl::Status used = Apply(*session, OpCode::kNeg, {1}, 2).status();
  EXPECT_EQ(used.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DetailsOf(used)->reason, ErrorReason::kInputFailed);
  EXPECT_EQ(DetailsOf(used)->origin_tensor, 1u);
  EXPECT_EQ(DetailsOf(used)->device, "gpu:0");
  EXPECT_THAT(std::string(used.message()), HasSubstr(std::string(root.message())));
  EXPECT_EQ(Copy(*session, 1, "cpu:0", 2).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(session->EnsureOn(1, "gpu:0", 0, {}).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(session->tensor_count(), 2u);
}

TEST_F(FailureTest, OthersDoNotSuffer) {
  const SessionRef session = Open();
  const SessionRef other = Open();
  EXPECT_FALSE(FailOnDevice(*session, 1).ok());
  ASSERT_TRUE(Full(*session, 2, 1, 7).ok());
  ASSERT_TRUE(Apply(*session, OpCode::kNeg, {2}, 3).ok());
  ASSERT_TRUE(Full(*other, 1, 1, 8).ok());
  Drain();
  EXPECT_EQ(First(**session->Find(3)), -7);
  EXPECT_EQ(First(**other->Find(1)), 8);
}

// The chain is queued before its head has failed, and it changes devices on the way.
TEST_F(FailureTest, AChainOfAThousandQuotesTheRootAndDoesNotGrow) {
  const SessionRef session = Open();
  ASSERT_TRUE(Full(*session, 5000, 10'000'000, 1).ok());
  const std::shared_ptr<QueueGate> gate = Hold(1);
  ASSERT_TRUE(Full(*session, 1, 10'000'000, 1).ok());
  for (uint64_t id = 2; id <= 1000; ++id) {
    const absl::StatusOr<TensorRef> next =
        id % 100 == 0 ? Copy(*session, id - 1, id % 200 == 0 ? "gpu:1" : "gpu:0", id)
                      : Apply(*session, OpCode::kNeg, {id - 1}, id);
    ASSERT_TRUE(next.ok()) << next.status();
  }
  gate->Open();
  Drain();
  const std::string root((*session->Find(1))->status().message());
  EXPECT_THAT(root, HasSubstr("out of memory"));
  for (const uint64_t id : {2, 3, 100, 101, 200, 999, 1000}) {
    SCOPED_TRACE(id);
    const absl::Status status = (*session->Find(id))->status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(DetailsOf(status)->reason, ErrorReason::kInputFailed);
    EXPECT_EQ(DetailsOf(status)->origin_tensor, 1u);
    EXPECT_THAT(std::string(status.message()), HasSubstr(root));
    EXPECT_LT(status.message().size(), root.size() + 150);
  }
  // The same for what is refused now that all have failed.
  EXPECT_LT(Apply(*session, OpCode::kNeg, {1000}, 0).status().message().size(), root.size() + 150);
}

TEST_F(FailureTest, ARefusedCommandLeavesItsFailureWhereABatchAsksForIt) {
  const SessionRef session = Open();
  Session::Request request;
  request.leave_failed = true;
  request.command_number = 4;
  ASSERT_TRUE(Full(*session, 1, 2, 1).ok());
  ASSERT_TRUE(Full(*session, 2, 3, 1).ok());
  EXPECT_FALSE(Apply(*session, OpCode::kAdd, {1, 2}, 3, std::move(request)).ok());
  const absl::StatusOr<TensorRef> failed = session->Find(3);
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ((*failed)->state(), Tensor::State::kFailed);
  EXPECT_EQ((*failed)->status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status used = Apply(*session, OpCode::kNeg, {3}, 4).status();
  EXPECT_EQ(DetailsOf(used)->origin_tensor, 3u);
  EXPECT_EQ(DetailsOf(used)->command_number, 4u);
  // Without that, and without an id, nothing is left.
  EXPECT_FALSE(Apply(*session, OpCode::kAdd, {1, 2}, 5).ok());
  EXPECT_FALSE(session->Find(5).ok());
  Session::Request nameless;
  nameless.leave_failed = true;
  EXPECT_FALSE(Apply(*session, OpCode::kAdd, {1, 2}, 0, std::move(nameless)).ok());
  EXPECT_EQ(session->tensor_count(), 3u);
}

TEST_F(FailureTest, AFailureDoesNotReplaceATensorThatIsThere) {
  const SessionRef session = Open();
  ASSERT_TRUE(Full(*session, 1, 1, 7).ok());
  Session::Request request;
  request.leave_failed = true;
  EXPECT_EQ(Apply(*session, OpCode::kNeg, {99}, 1, std::move(request)).status().code(),
            absl::StatusCode::kAlreadyExists);
  Drain();
  EXPECT_EQ(First(**session->Find(1)), 7);
}

TEST_F(FailureTest, QueuedWorkOfAClosedSessionNeverStarts) {
  const SessionRef session = Open();
  const std::shared_ptr<QueueGate> first = Hold(1);
  const std::shared_ptr<QueueGate> second = Hold(2);
  std::vector<absl::Status> ends(4);
  const auto record = [&ends](size_t place) {
    Session::Request request;
    request.done = [&ends, place](Tensor& tensor) { ends[place] = tensor.status(); };
    return request;
  };
  ASSERT_TRUE(Full(*session, 1, 1000, 1, "gpu:0", record(0)).ok());
  ASSERT_TRUE(Apply(*session, OpCode::kNeg, {1}, 2, record(1)).ok());
  ASSERT_TRUE(Copy(*session, 2, "gpu:1", 3, record(2)).ok());
  ASSERT_TRUE(Full(*session, 4, 1000, 1, "gpu:1", record(3)).ok());
  table().Close(session);
  first->Open();
  second->Open();
  Drain();
  for (const absl::Status& end : ends) {
    EXPECT_EQ(DetailsOf(end)->reason, ErrorReason::kCancelled) << end;
  }
  for (size_t i = 0; i < devices().size(); ++i) {
    EXPECT_EQ(devices().queue(i).device().memory().peak_bytes, 0u);
  }
}

TEST_F(FailureTest, ADeletedInputIsStillUsedByQueuedWork) {
  const SessionRef session = Open();
  const std::shared_ptr<QueueGate> gate = Hold(1);
  ASSERT_TRUE(Full(*session, 1, 1000, 3).ok());
  ASSERT_TRUE(Apply(*session, OpCode::kNeg, {1}, 2).ok());
  const uint64_t id = 1;
  ASSERT_TRUE(session->Delete({&id, 1}).ok());
  gate->Open();
  Drain();
  EXPECT_EQ(First(**session->Find(2)), -3);
  EXPECT_EQ(UsedBytes(), 4000u);
}

// Deletes make room in the order in which they were asked for.
TEST_F(FailureTest, AChainOverTwoDevicesWaitsForItsInputs) {
  const SessionRef session = Open();
  const std::shared_ptr<QueueGate> gate = Hold(1);
  ASSERT_TRUE(Full(*session, 1, 10, 1).ok());
  for (uint64_t id = 2; id <= 60; id += 3) {  // neg on gpu:0, over to gpu:1, neg there, and back
    ASSERT_TRUE(Apply(*session, OpCode::kNeg, {id - 1}, id).ok());
    ASSERT_TRUE(Copy(*session, id, id % 2 == 0 ? "gpu:1" : "gpu:0", id + 1).ok());
    ASSERT_TRUE(Apply(*session, OpCode::kExp, {id + 1}, id + 2).ok());
  }
  EXPECT_FALSE((*session->Find(61))->done());
  gate->Open();
  Drain();
  EXPECT_EQ((*session->Find(61))->state(), Tensor::State::kReady);
}

using FaultCase = std::tuple<FaultPlan::Kind, FaultyDevice::Memory>;

// A scenario that touches every call of a device, failed at each of them in turn.
class FaultWalkTest : public FailureTest, public testing::WithParamInterface<FaultCase> {
 protected:
  FaultWalkTest() {
    faulty = true;
    memory = std::get<1>(GetParam());
  }

  // What is refused leaves its failure, so that the root cause reaches whatever comes after.
  static Session::Request InBatch() {
    Session::Request request;
    request.leave_failed = true;
    return request;
  }

  // The first element of a ready f32 tensor of cpu:0, whatever kind of memory it is in.
  float ReadBack(const Tensor& tensor) {
    float value = 0;
    const std::span<std::byte> target(reinterpret_cast<std::byte*>(&value), sizeof(value));
    EXPECT_TRUE(devices().queue(0).device().CopyToHost(tensor.data(), target).ok());
    return value;
  }

  // Whether all of it worked; whatever failed said so by name.
  bool RunScenario() {
    const SessionRef session = Open();
    bool all_well = true;
    const auto note = [&](const absl::Status& status) {
      all_well = all_well && status.ok();
      EXPECT_TRUE(status.ok() || absl::StrContains(std::string(status.message()), "injected fault"))
          << status;
    };
    const auto add = [&](const absl::StatusOr<TensorRef>& tensor) { note(tensor.status()); };
    TensorSpec spec;
    spec.shape = Shape::Of({2});
    const float values[] = {1, 2};
    const auto bytes = std::as_bytes(std::span(values));
    Session::Request first = InBatch();
    first.id = 1;
    add(session->CreateFromValues(spec, {bytes.begin(), bytes.end()}, "gpu:0", std::move(first)));
    add(Full(*session, 2, 2, 5, "gpu:0", InBatch()));
    add(Apply(*session, OpCode::kAdd, {1, 2}, 3, InBatch()));
    add(Copy(*session, 3, "gpu:1", 4, InBatch()));
    add(Copy(*session, 4, "cpu:0", 5, InBatch()));
    add(Apply(*session, OpCode::kNeg, {5}, 6, InBatch()));
    absl::StatusOr<TensorRef> upload = session->BeginUpload(spec, "gpu:1", 7, "");
    note(upload.status());
    if (upload.ok()) {
      const absl::Status copied =
          devices().queue(2).device().CopyFromHost(bytes, (*upload)->upload_data());
      note(copied);
      if (copied.ok()) {
        note(session->CommitUpload(*upload));
      }
      upload->reset();
    }
    Drain();
    for (const uint64_t id : {1, 2, 3, 4, 5, 6, 7}) {
      const absl::StatusOr<TensorRef> tensor = session->Find(id);
      all_well = all_well && tensor.ok();
      if (tensor.ok()) {
        EXPECT_TRUE((*tensor)->done());
        note((*tensor)->status());
      }
    }
    tripped = faults.tripped();
    faults.Stop();
    if (all_well) {
      EXPECT_EQ(ReadBack(**session->Find(6)), -6);
    }
    table().Close(session);
    return all_well;
  }

  bool tripped = false;  // in the scenario run last
};

TEST_P(FaultWalkTest, EveryFailureIsToldAndLeavesNothing) {
  ASSERT_TRUE(RunScenario());
  uint64_t call = 1;
  for (; call < 1000; ++call) {
    SCOPED_TRACE(call);
    faults.Fail(call, std::get<0>(GetParam()));
    const bool worked = RunScenario();
    CheckBaseline();
    if (!tripped) {
      EXPECT_TRUE(worked);
      break;
    }
    EXPECT_FALSE(worked);
  }
  EXPECT_GT(call, 15u);  // It did walk through something.
  EXPECT_LT(call, 1000u);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, FaultWalkTest,
    testing::Combine(testing::Values(FaultPlan::Kind::kTransient, FaultPlan::Kind::kPersistent),
                     testing::Values(FaultyDevice::Memory::kHost, FaultyDevice::Memory::kForeign)));

}  // namespace
}  // namespace devserver
