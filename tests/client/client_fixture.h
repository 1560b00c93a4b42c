// A client of a real server in this process. After each test the server is back at its baseline.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "devserver/client.h"
#include "server/base/error_details.h"
#include "tests/fakes/test_server.h"

namespace devserver::client {

inline ErrorReason ReasonOf(const absl::Status& status) {
  const auto details = DetailsOf(status);
  return details.has_value() ? details->reason : ErrorReason::kUnspecified;
}

class ClientTest : public ServerTest {
 protected:
  Client Connect(ClientOptions client_options = {}) {
    return ConnectTo(server().address(), std::move(client_options));
  }
  static Client ConnectTo(const std::string& address, ClientOptions client_options = {}) {
    absl::StatusOr<Client> client = Client::connect(address, std::move(client_options));
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);  // A failed connect ends the test here.
  }
};

}  // namespace devserver::client
