// The unary calls over the wire: what each does, on every kind of device, for every kind of
// content, dtype and odd shape.
#include <cmath>
#include <limits>

#include "tests/fakes/test_server.h"
#include "tests/rpc/wire_client.h"

namespace devserver {
namespace {

using testing::Test;

class UnaryTest : public ServerTest {
 protected:
  void SetUp() override { client = std::make_unique<WireClient>(server().channel()); }
  std::unique_ptr<WireClient> client;
};

TEST_F(UnaryTest, CreateMultiplyAndFetchOnAGpu) {
  const auto a = client->Create("shape: [2, 3] device: 'gpu:1' fill: 2");
  ASSERT_TRUE(a.ok()) << a.message();
  EXPECT_EQ(a.reply.tensor().id(), 1u);  // What a person types.
  EXPECT_EQ(a.reply.tensor().device(), "gpu:1");
  EXPECT_EQ(a.reply.tensor().state(), v1::Tensor::READY);
  EXPECT_EQ(a.reply.tensor().size_bytes(), 24u);
  EXPECT_EQ(server().used_bytes(2), 24u);
  const auto b =
      client->Create("shape: [3, 2] device: 'gpu:1' values { numbers: [1, 2, 3, 4, 5, 6] }");
  ASSERT_TRUE(b.ok()) << b.message();
  const auto product = client->MatMul("a: 1 b: 2");
  ASSERT_TRUE(product.ok()) << product.message();
  EXPECT_EQ(product.reply.tensor().id(), 3u);
  EXPECT_GT(product.reply.measured_seconds(), 0);
  EXPECT_GT(product.reply.simulated_seconds(), 0);
  EXPECT_EQ(client->Numbers(3), (std::vector<double>{18, 24, 18, 24}));
  EXPECT_EQ(client->Delete({1, 2, 3}).reply.freed_bytes(), 24u + 24u + 16u);
  EXPECT_TRUE(server().UsedBytesBecome(0));
}

}  // namespace
}  // namespace devserver
