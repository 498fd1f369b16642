# What find_package(fusewheel) defines:
#
#   fusewheel::cpu       for a program: torch and the CPU kernels, which are loaded before main
#   fusewheel::kernels   for a library of kernels: the headers of fusewheel and of torch's stable ABI
#   fusewheel_operators(TARGET DISPATCH_KEY OPERATOR...)   puts operators around a library's kernels
#
# torch is the one beside fusewheel in site-packages, or one that CMAKE_PREFIX_PATH leads to. Its own
# CMake package is not asked: that of a CUDA build stops where no CUDA toolkit is installed. A program
# that wants it calls find_package(Torch) first; fusewheel::cpu then links what that defines.

if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  set(fusewheel_FOUND FALSE)
  set(fusewheel_NOT_FOUND_MESSAGE "its CMake package is for Linux only, not ${CMAKE_SYSTEM_NAME}")
  return()
endif()

get_filename_component(_fusewheel "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(_fusewheel_hints "${_fusewheel}/../torch")
foreach(_fusewheel_prefix IN LISTS CMAKE_PREFIX_PATH)
  # The folder of the package torch, or torch.utils.cmake_prefix_path: torch/share/cmake.
  list(APPEND _fusewheel_hints "${_fusewheel_prefix}" "${_fusewheel_prefix}/../..")
endforeach()
find_path(fusewheel_TORCH include/torch/csrc/stable/library.h
  HINTS ${_fusewheel_hints} NO_DEFAULT_PATH DOC "the folder of the Python package torch")
if(NOT fusewheel_TORCH)
  set(fusewheel_FOUND FALSE)
  set(fusewheel_NOT_FOUND_MESSAGE
    "torch >= 2.10 is not beside ${_fusewheel}: pass -Dfusewheel_TORCH=DIR, the folder of torch")
  return()
endif()

if(NOT TARGET fusewheel::kernels)
  set(_fusewheel_include "${fusewheel_TORCH}/include")
  add_library(fusewheel::c10 SHARED IMPORTED)
  set_target_properties(fusewheel::c10 PROPERTIES
    IMPORTED_LOCATION "${fusewheel_TORCH}/lib/libc10.so")
  add_library(fusewheel::torch_cpu SHARED IMPORTED)
  set_target_properties(fusewheel::torch_cpu PROPERTIES
    IMPORTED_LOCATION "${fusewheel_TORCH}/lib/libtorch_cpu.so"
    INTERFACE_INCLUDE_DIRECTORIES
      "${_fusewheel_include};${_fusewheel_include}/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES fusewheel::c10)

  add_library(fusewheel::schema SHARED IMPORTED)
  set_target_properties(fusewheel::schema PROPERTIES
    IMPORTED_LOCATION "${_fusewheel}/libfusewheel_schema.so")
  add_library(fusewheel::cpu_library SHARED IMPORTED)
  set_target_properties(fusewheel::cpu_library PROPERTIES
    IMPORTED_LOCATION "${_fusewheel}/libfusewheel_cpu.so"
    IMPORTED_LINK_DEPENDENT_LIBRARIES fusewheel::schema)

  add_library(fusewheel::cpu INTERFACE IMPORTED)
  set(_fusewheel_torch fusewheel::torch_cpu)
  if(TARGET torch)
    set(_fusewheel_torch torch)
  endif()
  target_link_libraries(fusewheel::cpu INTERFACE ${_fusewheel_torch} fusewheel::cpu_library)
  # A program uses no symbol of the library, so the linker would leave it out.
  target_link_options(fusewheel::cpu INTERFACE
    "LINKER:--push-state,--no-as-needed,${_fusewheel}/libfusewheel_cpu.so,--pop-state")
  target_compile_features(fusewheel::cpu INTERFACE cxx_std_20)  # for torch's headers

  add_library(fusewheel::kernels INTERFACE IMPORTED)
  target_include_directories(fusewheel::kernels INTERFACE "${_fusewheel}/include")
  target_link_libraries(fusewheel::kernels INTERFACE fusewheel::torch_cpu)
  target_compile_features(fusewheel::kernels INTERFACE cxx_std_17)
  # torch 2.10, the oldest that is supported: the library then runs on every later one.
  target_compile_definitions(fusewheel::kernels INTERFACE
    TORCH_TARGET_VERSION=0x020a000000000000ULL)
  # Two libraries of kernels in one process have functions of the same names.
  target_compile_options(fusewheel::kernels INTERFACE
    -fvisibility=hidden -fvisibility-inlines-hidden)
endif()

# Compiles into TARGET what stands around the kernels of operators: checks of arguments, memory for
# results, registration under the DISPATCH_KEY. OPERATOR is the name of a file in share/fusewheel. The
# target must define the launchers that these files name, and the functions of fusewheel/backend.h.
function(fusewheel_operators target dispatch_key)
  set(_sources "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../fusewheel")
  target_sources(${target} PRIVATE "${_sources}/signatures.cpp")
  foreach(_operator IN LISTS ARGN)
    file(GLOB _found "${_sources}/operators/*/${_operator}.cpp")
    if(NOT _found)
      file(GLOB _all RELATIVE "${_sources}/operators" "${_sources}/operators/*/*.cpp")
      message(FATAL_ERROR "fusewheel_operators: no operator ${_operator}; there are ${_all}")
    endif()
    target_sources(${target} PRIVATE "${_found}")
  endforeach()
  target_compile_definitions(${target} PRIVATE FUSEWHEEL_DISPATCH_KEY=${dispatch_key})
  target_link_libraries(${target} PRIVATE fusewheel::kernels)
endfunction()
