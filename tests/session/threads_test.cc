// Many threads on one session: what they do to each other's handles is either refused by name or
// right.
#include <atomic>
#include <random>
#include <thread>

#include "tests/session/session_fixture.h"

namespace devserver {
namespace {

class ThreadsTest : public SessionTest {
 protected:
  template <typename Body>
  static void OnThreads(int count, Body body) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
      threads.emplace_back([i, &body] { body(i); });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  // What may happen to a command whose inputs others delete at any time.
  static bool IsExpected(const absl::Status& status) {
    if (status.ok()) {
      return true;
    }
    const ErrorReason reason = DetailsOf(status).value_or(ErrorDetails()).reason;
    return reason == ErrorReason::kNoSuchTensor || reason == ErrorReason::kDuplicateId ||
           reason == ErrorReason::kInputFailed || reason == ErrorReason::kDeviceMismatch ||
           reason == ErrorReason::kSessionExpired || reason == ErrorReason::kCancelled;
  }
};

TEST_F(ThreadsTest, EightThreadsUseAndFreeTheSameHandles) {
  const SessionRef session = Open();
  std::atomic<uint64_t> done = 0;
  std::atomic<uint64_t> accepted = 0;
  OnThreads(8, [&](int thread) {
    const unsigned seed = 20'240 + static_cast<unsigned>(thread);
    SCOPED_TRACE(absl::StrFormat("seed %d", seed));
    std::minstd_rand random(seed);
    const auto pick = [&](uint64_t count) { return random() % count; };
    for (int i = 0; i < 400; ++i) {
      Session::Request request;
      request.done = [&done](Tensor& tensor) {
        EXPECT_TRUE(IsExpected(tensor.status())) << tensor.status();
        done.fetch_add(1);
      };
      const uint64_t a = 1 + pick(12);
      const uint64_t b = 1 + pick(12);
      const std::string device = absl::StrFormat("gpu:%d", pick(2));
      absl::Status status;
      bool counts = true;
      switch (pick(5)) {
        case 0:
          status = Full(*session, a, 64, 1, device, std::move(request)).status();
          break;
        case 1:
          status = Apply(*session, OpCode::kAdd, {a, b}, 1 + pick(12), std::move(request)).status();
          break;
        case 2:
          status = Copy(*session, a, device, 1 + pick(12), std::move(request)).status();
          break;
        case 3:
          status = session->EnsureOn(a, device, 0, std::move(request)).status();
          break;
        default:
          status = session->Delete({&a, 1}).status();
          counts = false;
          break;
      }
      EXPECT_TRUE(IsExpected(status)) << status;
      accepted.fetch_add(counts && status.ok() ? 1 : 0);
    }
  });
  Drain();
  EXPECT_EQ(done.load(), accepted.load());  // Each callback once.
  EXPECT_EQ(session->account().in_flight(), 0u);
}

TEST_F(ThreadsTest, ASessionMayBeClosedWhileOthersUseIt) {
  for (int round = 0; round < 20; ++round) {
    const SessionRef session = Open();
    std::atomic<uint64_t> done = 0;
    std::atomic<uint64_t> accepted = 0;
    OnThreads(4, [&](int thread) {
      for (uint64_t i = 0; i < 50; ++i) {
        if (thread == 0 && i == 25) {
          table().Close(session);
        }
        Session::Request request;
        request.done = [&done](Tensor& tensor) {
          EXPECT_TRUE(IsExpected(tensor.status())) << tensor.status();
          done.fetch_add(1);
        };
        const absl::Status status =
            i % 3 == 0 ? Copy(*session, i, "gpu:1", 0, std::move(request)).status()
                       : Full(*session, 0, 100, 1, "gpu:0", std::move(request)).status();
        EXPECT_TRUE(IsExpected(status)) << status;
        accepted.fetch_add(status.ok() ? 1 : 0);
      }
    });
    Drain();
    EXPECT_EQ(done.load(), accepted.load());
    EXPECT_EQ(UsedBytes(), 0u);
  }
}

// A tensor that is in the table never changes: whoever finds it finds it whole.
TEST_F(ThreadsTest, UploadsOfOneIdFindAWholeTensorOrNone) {
  const SessionRef session = Open();
  TensorSpec spec;
  spec.shape = Shape::Of({16});
  OnThreads(4, [&](int /*thread*/) {
    for (int i = 0; i < 2000; ++i) {
      const absl::StatusOr<TensorRef> upload = session->BeginUpload(spec, "gpu:0", 1, "");
      ASSERT_TRUE(upload.ok()) << upload.status();
      if ((*upload)->done()) {
        const uint64_t id = 1;
        EXPECT_TRUE(IsExpected(session->Delete({&id, 1}).status()));
        continue;
      }
      // Not a replay, so it is this thread's alone.
      EXPECT_LE(upload->use_count(), 1);
      EXPECT_TRUE(IsExpected(session->CommitUpload(*upload)));
    }
  });
}

TEST_F(ThreadsTest, SessionsComeAndGoOnManyThreads) {
  table();  // Made here, not by eight threads at once.
  OnThreads(8, [&](int thread) {
    for (int i = 0; i < 20; ++i) {
      const absl::StatusOr<SessionRef> session = table().Open("busy", "127.0.0.1", 0);
      ASSERT_TRUE(session.ok());
      ASSERT_TRUE(Full(**session, 1, 1000, 1, thread % 2 == 0 ? "gpu:0" : "gpu:1").ok());
      ASSERT_TRUE(Copy(**session, 1, "cpu:0", 2).ok());
      EXPECT_TRUE(table().Find((*session)->options().token).ok());
      table().List();
      clock.Advance(Seconds(0.001));
      table().CloseExpired();
      table().Close(*session);
    }
  });
  Drain();
  EXPECT_EQ(UsedBytes(), 0u);
}

}  // namespace
}  // namespace devserver
