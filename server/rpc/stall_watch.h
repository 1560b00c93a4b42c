// Ends bulk streams that have moved nothing for too long, so that a vanished or stalled peer does
// not hold memory. Thread safety: any thread; CancelStalled is called by one timer.
#pragma once

#include <atomic>
#include <list>

#include "server/base/clock.h"
#include "server/base/mutex.h"

namespace grpc {
class ServerContextBase;
}  // namespace grpc

namespace devserver {

class StallWatch {
 public:
  explicit StallWatch(Seconds limit) : limit_(limit) {}

  // A stream under watch from construction to destruction. `context` must live as long.
  class Entry {
   public:
    Entry(StallWatch* watch, grpc::ServerContextBase* context);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    // Something moved.
    void Moved();

   private:
    friend class StallWatch;
    // Constant after construction.
    StallWatch* const watch_;
    grpc::ServerContextBase* const context_;
    std::list<Entry*>::iterator position_;
    std::atomic<int64_t> last_moved_;  // Ticks of TimePoint; orders nothing.
  };

  void CancelStalled(TimePoint now);

 private:
  // Constant after construction.
  const Seconds limit_;
  // Guarded by mu_.
  Mutex mu_;
  std::list<Entry*> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace devserver
