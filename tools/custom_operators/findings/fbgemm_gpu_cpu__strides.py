"""segment_sum_csr gives other sums for a tensor with gaps

A column of a matrix is a tensor with gaps. The kernel reads what lies side by side in memory
instead, without an error.
"""

import fbgemm_gpu
import torch

ends = torch.tensor([0, 2, 5])
column = torch.arange(10.0).reshape(5, 2)[:, 0]  # 0, 2, 4, 6, 8
sums = torch.ops.fbgemm.segment_sum_csr
print("given a column:", sums(1, ends, column).tolist())
print("given a copy of it:", sums(1, ends, column.contiguous()).tolist())
