// The stream a launcher gets, named without CUDA's headers: the glue is compiled without them.
#pragma once

struct CUstream_st;

namespace fusewheel {

using Stream = CUstream_st*;  // cudaStream_t

}  // namespace fusewheel
