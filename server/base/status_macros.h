// RETURN_IF_ERROR(status) and ASSIGN_OR_RETURN(target, status_or): leave the function with the
// error, or go on.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define DEVSERVER_CONCAT_INNER(a, b) a##b
#define DEVSERVER_CONCAT(a, b) DEVSERVER_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                                             \
  do {                                                                          \
    if (absl::Status devserver_status = (expression); !devserver_status.ok()) { \
      return devserver_status;                                                  \
    }                                                                           \
  } while (false)

#define ASSIGN_OR_RETURN(target, expression) \
  ASSIGN_OR_RETURN_INNER(DEVSERVER_CONCAT(devserver_status_or_, __LINE__), target, expression)

#define ASSIGN_OR_RETURN_INNER(status_or, target, expression) \
  auto status_or = (expression);                              \
  if (!status_or.ok()) {                                      \
    return std::move(status_or).status();                     \
  }                                                           \
  target = *std::move(status_or)
