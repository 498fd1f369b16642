# Windows. No symbol may be left open here, so the import libraries of the building torch are linked;
# a DLL is looked for beside the one that needs it, and a name that is loaded is not loaded again.
# What leaves a library is marked in the sources (FUSEWHEEL_EXPORT).

foreach(_library torch_cpu torch)
  add_library(${_library} SHARED IMPORTED)
  cmake_path(SET _implib NORMALIZE "${FUSEWHEEL_TORCH_INCLUDE}/../lib/${_library}.lib")
  set_target_properties(${_library} PROPERTIES IMPORTED_IMPLIB ${_implib})
endforeach()

function(fusewheel_needs target)
  target_link_libraries(${target} PRIVATE ${ARGN})
endfunction()

function(fusewheel_ship target)
  set_target_properties(${target} PROPERTIES PREFIX "")
endfunction()
