// The products of matmul.h for tensors, on all threads.
#pragma once

#include <fusewheel/linear/linear.h>

#include <memory>
#include <vector>

#include "matmul.h"

namespace fusewheel {

// Whether ATen multiplies matrices of this dtype as fast as this processor can.
bool is_fast_in_aten(ScalarType dtype);

// x [rows] @ weight^T + bias -> y. With a `group_size` above 0, x is rounded to int8 by groups of that
// many (float64 never is): kInt4Block for 4-bit codes.
void matmul(const RowMatrix& x, const LinearWeight& weight, const std::optional<Tensor>& bias,
            Tensor& y, int64_t group_size);

class RoundedMatrix;

// The arguments of a product, and the tensors that they point into, but for the weight and y.
class PreparedProduct {
 public:
  PreparedProduct(const RowMatrix& x, const LinearWeight& weight, const std::optional<Tensor>& bias,
                  const Tensor& y, int64_t group_size);
  // Of the rows of another product, which are prepared alike for this weight.
  PreparedProduct(const PreparedProduct& other, const LinearWeight& weight,
                  const std::optional<Tensor>& bias, const Tensor& y);

  MatmulArgs args;

 private:
  const void* bias_of(const std::optional<Tensor>& bias, const Tensor& y, int64_t size);

  RowMatrix a_;
  std::optional<RowMatrix> bias_;
  std::shared_ptr<const RoundedMatrix> rounded_;
};

// Products of so many rows of x at most wait for others: larger ones keep all threads busy by themselves.
constexpr int64_t kMostWaitingRows = 16;

// Products of few rows of x each. While one of these lives, the linear layers that its thread calls
// wait in it, until `run` computes all of them and wakes the threads once.
class WaitingProducts {
 public:
  WaitingProducts();
  ~WaitingProducts();
  WaitingProducts(const WaitingProducts&) = delete;
  WaitingProducts& operator=(const WaitingProducts&) = delete;

  // False if the products of this call cannot wait. Keeps the tensors of the call.
  static bool take(const Linear& call, int64_t group_size);

  // Of float32 rows that lie `stride` apart, without a tensor: what is pointed to must live until `run`.
  // The bias, float32 too, may be null. `dynamic` rounds x to int8.
  void add(const float* x, int64_t rows, int64_t stride, const LinearWeight& weight, const float* bias,
           float* y, bool dynamic);

  // Whether that is possible: there may be too many rows, and to round x may take memory.
  static bool can_add(const LinearWeight& weight, int64_t rows, bool dynamic);

  // Whether there are products by `add`.
  bool borrows() const { return borrows_; }

  void run();

 private:
  struct Product {
    MatmulArgs args;
    MatmulPlan plan;
  };
  // The tensors of a product.
  struct Owner {
    Linear call;
    int64_t group_size;
    PreparedProduct prepared;
  };

  void wait(const MatmulArgs& args);
  PreparedProduct prepare(const Linear& call, int64_t group_size) const;

  std::vector<Product> products_;
  std::vector<Owner> owners_;
  bool borrows_ = false;
};

// grad [rows] @ weight -> y
void matmul_transposed(const RowMatrix& grad, const LinearWeight& weight, Tensor& y);

// grad^T [columns of grad, rows] @ x [rows, columns of x] -> y, or added to it. The columns of grad go in tiles
// into `memory` where there is some.
void matmul_gradient(const RowMatrix& grad, const RowMatrix& x, Tensor& y, bool add = false,
                     const std::optional<Tensor>& memory = std::nullopt);

}  // namespace fusewheel
