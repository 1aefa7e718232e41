# find_package(mge_core 1.0 CONFIG): what a backend's library is built with. The version is that of the plugin ABI.
#
#   mge::plugin                        the headers mge/plugin.h and mge/kernel.hpp
#   mge::runtime                       mge/runtime.hpp with its library, for programs that run plans of `mge compile`
#   mge_add_backend(NAME source...)    a library lib<NAME>.so that exports its entry function and nothing else

cmake_minimum_required(VERSION 3.22)

# In a wheel the headers are beside this folder; in a checkout they are at the top of the distribution.
foreach(folder "${CMAKE_CURRENT_LIST_DIR}/../include" "${CMAKE_CURRENT_LIST_DIR}/../../../include")
  if(EXISTS "${folder}/mge/plugin.h")
    get_filename_component(mge_core_INCLUDE_DIR "${folder}" ABSOLUTE)
    break()
  endif()
endforeach()
if(NOT mge_core_INCLUDE_DIR)
  set(mge_core_FOUND FALSE)
  set(mge_core_NOT_FOUND_MESSAGE "this installation of mge-core has no headers")
  return()
endif()

if(NOT TARGET mge::plugin)
  add_library(mge::plugin INTERFACE IMPORTED)
  set_target_properties(mge::plugin PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${mge_core_INCLUDE_DIR}")
endif()

# The runtime is compiled in the user's build, if something links it: no question of whose compiler fits whose.
foreach(folder "${CMAKE_CURRENT_LIST_DIR}/../sources" "${CMAKE_CURRENT_LIST_DIR}/../../../native")
  if(EXISTS "${folder}/runtime.cc")
    get_filename_component(mge_core_RUNTIME_DIR "${folder}" ABSOLUTE)
    break()
  endif()
endforeach()
get_property(mge_core_languages GLOBAL PROPERTY ENABLED_LANGUAGES)
if(mge_core_RUNTIME_DIR AND "CXX" IN_LIST mge_core_languages AND NOT TARGET mge_runtime)
  add_library(mge_runtime STATIC EXCLUDE_FROM_ALL)
  foreach(part backend executor memory_pool plan_file runtime thread_pool tuning_cache)
    target_sources(mge_runtime PRIVATE "${mge_core_RUNTIME_DIR}/${part}.cc")
  endforeach()
  target_include_directories(mge_runtime PUBLIC "${mge_core_INCLUDE_DIR}" PRIVATE "${mge_core_RUNTIME_DIR}")
  target_compile_features(mge_runtime PUBLIC cxx_std_17)
  set_target_properties(mge_runtime PROPERTIES POSITION_INDEPENDENT_CODE ON)
  set(THREADS_PREFER_PTHREAD_FLAG ON)
  find_package(Threads REQUIRED)
  target_link_libraries(mge_runtime PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
  add_library(mge::runtime ALIAS mge_runtime)
endif()

function(mge_add_backend name)
  add_library(${name} MODULE ${ARGN})
  target_link_libraries(${name} PRIVATE mge::plugin)
  target_compile_features(${name} PRIVATE cxx_std_17)
  set_target_properties(${name} PROPERTIES
    PREFIX lib
    POSITION_INDEPENDENT_CODE ON
    C_VISIBILITY_PRESET hidden
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
  if(NOT APPLE)
    target_link_options(${name} PRIVATE "-Wl,--version-script=${mge_core_DIR}/mge_backend.map")
  endif()
endfunction()
