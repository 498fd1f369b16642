# Linux. Linking goes against empty libraries that carry the SONAME of torch's own, so the result
# names them and the torch that is already loaded satisfies it.

include(${CMAKE_CURRENT_LIST_DIR}/old_glibc.cmake)
set(_exports ${CMAKE_CURRENT_LIST_DIR}/exports.map)

file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/torch_stub.cpp "")
foreach(_library torch_cpu torch)
  add_library(${_library} SHARED ${CMAKE_CURRENT_BINARY_DIR}/torch_stub.cpp)
endforeach()

function(fusewheel_needs target)
  target_link_libraries(${target} PRIVATE -Wl,--no-as-needed ${ARGN} -Wl,--as-needed)
endfunction()

function(fusewheel_ship target)
  target_sources(${target} PRIVATE ${FUSEWHEEL_ROOT}/packages/schema/src/old_libstdcxx.cpp)
  target_link_libraries(${target} PRIVATE fusewheel_old_glibc)
  target_link_options(${target} PRIVATE "-Wl,--version-script=${_exports}" -Wl,--gc-sections)
  set_target_properties(${target} PROPERTIES
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN" LINK_DEPENDS ${_exports})
endfunction()
