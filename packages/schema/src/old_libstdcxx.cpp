// Stand-ins for what the libstdc++ and glibc of manylinux_2_28 do not have (old_glibc.cmake), named
// as the compiler names them. They are local to the library they are linked into.

#include <new>
#include <sstream>

extern "C" {

// GLIBC_2.32: nonzero if the process has one thread only. Zero, "there may be more", is always right.
char __libc_single_threaded = 0;

// GLIBCXX_3.4.26: the default constructors; those that take a mode are older.
void _ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev(void* place) {
  ::new (place) std::ostringstream(std::ios_base::out);
}

void _ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev(void* place) {
  ::new (place) std::stringstream(std::ios_base::in | std::ios_base::out);
}

// GLIBCXX_3.4.29: what a vector of more elements than memory can have calls.
[[noreturn]] void _ZSt28__throw_bad_array_new_lengthv() { throw std::bad_array_new_length(); }

}  // extern "C"
