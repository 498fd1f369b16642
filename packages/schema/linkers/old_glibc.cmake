# Makes libraries that are linked here run on glibc 2.28 and its libstdc++ (manylinux_2_28).
#
# The linker binds a symbol to the newest version that the building machine has. It finds these first
# in empty libraries that carry glibc's SONAMEs and the versions of old, which later glibcs still
# have. What that libstdc++ lacks altogether is in src/old_libstdcxx.cpp. `wheels/audit.py` names
# whatever else turns up.

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(_first GLIBC_2.2.5)  # the version of everything that was there when the port began
  set(_dlmopen dlmopen@GLIBC_2.3.4)
else()
  set(_first GLIBC_2.17)
  set(_dlmopen dlmopen)
endif()

add_library(fusewheel_old_glibc INTERFACE)

# An empty shared library with SONAME NAME.SUFFIX that defines the symbols (NAME, or NAME@VERSION). One
# for each SONAME: the linker passes over a second.
function(_fusewheel_old_library name suffix)
  set(_file ${CMAKE_CURRENT_BINARY_DIR}/old_glibc/${name})
  set(_functions "")
  set(_old "")
  set(_later "")
  foreach(_symbol IN LISTS ARGN)
    if(_symbol MATCHES "(.+)@(.+)")
      set(_symbol ${CMAKE_MATCH_1})
      string(APPEND _later "${CMAKE_MATCH_2} { ${_symbol}; };\n")
    else()
      string(APPEND _old " ${_symbol};")
    endif()
    string(APPEND _functions "extern \"C\" void ${_symbol}() {}\n")
  endforeach()
  file(CONFIGURE OUTPUT ${_file}.cpp CONTENT "${_functions}")
  file(CONFIGURE OUTPUT ${_file}.map CONTENT "${_first} {${_old} };\n${_later}" @ONLY)
  add_library(old_${name} SHARED ${_file}.cpp)
  set_target_properties(old_${name} PROPERTIES
    NO_SONAME ON CXX_VISIBILITY_PRESET default LINK_DEPENDS ${_file}.map)
  target_compile_options(old_${name} PRIVATE -w -fno-builtin)
  target_link_options(old_${name} PRIVATE
    -nostdlib -Wl,-soname,${name}.${suffix} -Wl,--version-script=${_file}.map)
  target_link_libraries(fusewheel_old_glibc INTERFACE old_${name})
endfunction()

_fusewheel_old_library(libm so.6 exp exp2 log log2 pow)
_fusewheel_old_library(libdl so.2 dlclose dlerror ${_dlmopen} dlopen dlsym dlvsym)
_fusewheel_old_library(librt so.1 shm_open shm_unlink)
_fusewheel_old_library(libpthread so.0
  pthread_condattr_setpshared pthread_create pthread_detach pthread_getspecific pthread_join
  pthread_key_create pthread_key_delete pthread_kill pthread_mutex_trylock
  pthread_mutexattr_destroy pthread_mutexattr_init pthread_mutexattr_setpshared
  pthread_mutexattr_settype pthread_once pthread_rwlock_destroy pthread_rwlock_init
  pthread_rwlock_rdlock pthread_rwlock_timedrdlock pthread_rwlock_timedwrlock
  pthread_rwlock_tryrdlock pthread_rwlock_trywrlock pthread_rwlock_unlock pthread_rwlock_wrlock
  pthread_rwlockattr_destroy pthread_rwlockattr_init pthread_rwlockattr_setpshared
  pthread_setspecific pthread_spin_destroy pthread_spin_init pthread_spin_lock
  pthread_spin_trylock pthread_spin_unlock sem_destroy sem_init sem_post sem_timedwait sem_trywait
  sem_wait)
