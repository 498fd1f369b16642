// Compiled into every kernel library: what its kernels take and return, for the loader to compare
// with the schema.

#include <fusewheel/export.h>
#include <fusewheel/kernel.h>

namespace fusewheel {

std::string& signatures() {
  // Filled by static initialisers of other files, hence created on first use.
  static std::string text;
  return text;
}

const DirectKernel*& direct_kernels() {
  static const DirectKernel* last = nullptr;
  return last;
}

}  // namespace fusewheel

FUSEWHEEL_EXPORT const char* fusewheel_signatures() {
  return fusewheel::signatures().c_str();
}
