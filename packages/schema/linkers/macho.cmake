# macOS. Torch's symbols are looked up in the process when a library is loaded, as torch's own
# extensions have it: an empty library of the same name would not satisfy this linker.

foreach(_library torch_cpu torch)
  add_library(${_library} INTERFACE)
endforeach()

function(fusewheel_needs target)
  target_link_libraries(${target} PRIVATE ${ARGN})
endfunction()

function(fusewheel_ship target)
  target_link_options(${target} PRIVATE
    -Wl,-undefined,dynamic_lookup -Wl,-dead_strip "-Wl,-exported_symbol,_fusewheel_*")
  set_target_properties(${target} PROPERTIES
    INSTALL_NAME_DIR "@rpath" BUILD_WITH_INSTALL_NAME_DIR ON
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "@loader_path")
endfunction()
