#include "client/file_bytes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "server/base/status_macros.h"

namespace devserver::client {
namespace {

constexpr size_t kShownBytesMax = 80;          // A line of a terminal.
constexpr size_t kFirstReadBytes = 64 * 1024;  // Where the size is unknown: a pipe, /proc.
constexpr size_t kIoBytesMax = 1 << 30;        // One read or write of Linux moves less than 2 GiB.
constexpr mode_t kNewFileMode = 0666;          // Less the caller's umask.

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return fd_; }
  // What close(2) said: 0 or -1.
  int Close() { return close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

absl::Status SystemError(int error, std::string_view action, const std::string& path) {
  const std::string message = absl::StrFormat("can't %s %s: %s", action, path, strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EISDIR:
    case ENAMETOOLONG:
      return absl::InvalidArgumentError(message);
    default:
      return absl::UnavailableError(message);
  }
}

int OpenRetrying(const char* path, int flags) {
  int fd = -1;
  do {
    fd = open(path, flags | O_CLOEXEC, kNewFileMode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// Room for `size` bytes that keeps the first `kept` of `old`.
absl::StatusOr<std::unique_ptr<std::byte[]>> Grow(std::unique_ptr<std::byte[]> old, size_t kept,
                                                  size_t size, const std::string& path) {
  std::unique_ptr<std::byte[]> grown(new (std::nothrow) std::byte[size]);
  if (grown == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("can't read %s: no memory for its %d bytes", path, size));
  }
  if (kept > 0) {
    std::memcpy(grown.get(), old.get(), kept);
  }
  return grown;
}

absl::Status WriteAll(int fd, std::span<const std::span<const std::byte>> parts,
                      const std::string& path) {
  for (std::span<const std::byte> part : parts) {
    while (!part.empty()) {
      const ssize_t written = write(fd, part.data(), std::min(part.size(), kIoBytesMax));
      if (written < 0 && errno == EINTR) {
        continue;
      }
      if (written < 0) {
        return SystemError(errno, "write", path);
      }
      part = part.subspan(static_cast<size_t>(written));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteDirectly(const std::string& path,
                           std::span<const std::span<const std::byte>> parts) {
  FileDescriptor file(OpenRetrying(path.c_str(), O_WRONLY | O_TRUNC));
  if (file.get() < 0) {
    return SystemError(errno, "write", path);
  }
  return WriteAll(file.get(), parts, path);
}

}  // namespace

std::string Shown(std::string_view text) {
  size_t kept = std::min(text.size(), kShownBytesMax);
  // Don't cut a UTF-8 character in two: its later bytes are 10xxxxxx.
  while (kept > 0 && kept < text.size() &&
         (static_cast<unsigned char>(text[kept]) & 0xC0) == 0x80) {
    --kept;
  }
  const std::string escaped = absl::Utf8SafeCEscape(absl::string_view(text.data(), kept));
  return absl::StrFormat("\"%s%s\"", escaped, kept < text.size() ? "..." : "");
}

absl::StatusOr<FileBytes> ReadFile(const std::string& path) {
  const FileDescriptor file(OpenRetrying(path.c_str(), O_RDONLY));
  struct stat about = {};
  if (file.get() < 0 || fstat(file.get(), &about) != 0) {
    return SystemError(errno, "read", path);
  }
  FileBytes bytes;
  // One byte more than the file has, so that its end shows without growing.
  size_t capacity = S_ISREG(about.st_mode) && about.st_size > 0
                        ? static_cast<size_t>(about.st_size) + 1
                        : kFirstReadBytes;
  ASSIGN_OR_RETURN(bytes.data, Grow(nullptr, 0, capacity, path));
  while (true) {
    if (bytes.size == capacity) {
      capacity *= 2;
      ASSIGN_OR_RETURN(bytes.data, Grow(std::move(bytes.data), bytes.size, capacity, path));
    }
    const ssize_t count = read(file.get(), bytes.data.get() + bytes.size,
                               std::min(capacity - bytes.size, kIoBytesMax));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      return SystemError(errno, "read", path);
    }
    if (count == 0) {
      return bytes;
    }
    bytes.size += static_cast<size_t>(count);
  }
}

absl::Status WriteFile(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  struct stat about = {};
  if (stat(path.c_str(), &about) == 0 && !S_ISREG(about.st_mode)) {
    return WriteDirectly(path, parts);
  }
  const std::string fresh = absl::StrFormat("%s.%d.part", path, getpid());
  FileDescriptor file(OpenRetrying(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL));
  if (file.get() < 0) {
    return SystemError(errno, "write", path);
  }
  absl::Status status = WriteAll(file.get(), parts, path);
  if (status.ok() && file.Close() != 0) {
    status = SystemError(errno, "write", path);
  }
  if (status.ok() && rename(fresh.c_str(), path.c_str()) != 0) {
    status = SystemError(errno, "write", path);
  }
  if (!status.ok()) {
    unlink(fresh.c_str());
  }
  return status;
}

}  // namespace devserver::client
