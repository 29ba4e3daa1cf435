# Looks for what choir is built on and prints one line for each. choir_features carries include paths and libraries.
find_package(PkgConfig REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS C)
find_package(Threads REQUIRED)
# A project around this one links choir_static, and with it these.
set_target_properties(OpenMP::OpenMP_C Threads::Threads PROPERTIES IMPORTED_GLOBAL TRUE)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET GLOBAL jansson>=2.13) # of Ubuntu 22.04
pkg_check_modules(ARCHIVE REQUIRED IMPORTED_TARGET GLOBAL libarchive)
set(CHOIR_ARCHIVE PkgConfig::ARCHIVE)
if(CHOIR_STATIC_ARCHIVE)
  find_library(ARCHIVE_STATIC libarchive.a REQUIRED)
  foreach(name lzma zstd bz2) # of xz, zstd and bzip2
    find_library(${name}_LIBRARY ${name} REQUIRED)
  endforeach()
  set(CHOIR_ARCHIVE ${ARCHIVE_STATIC} ${lzma_LIBRARY} ${zstd_LIBRARY} ${bz2_LIBRARY})
endif()
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET GLOBAL zlib)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET GLOBAL libutf8proc)
# Not by pkg-config: Debian 13's file asks for protobuf's, which its package does not bring.
find_library(SENTENCEPIECE_LIBRARY sentencepiece REQUIRED)
find_library(SENTENCEPIECE_TRAIN_LIBRARY sentencepiece_train REQUIRED)
find_path(SENTENCEPIECE_INCLUDE sentencepiece_processor.h REQUIRED)
execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --modversion sentencepiece OUTPUT_VARIABLE SENTENCEPIECE_VERSION
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT SENTENCEPIECE_VERSION)
  set(SENTENCEPIECE_VERSION unknown)
elseif(SENTENCEPIECE_VERSION VERSION_LESS 0.1.96) # of Ubuntu 22.04; before it trainers know no allow_whitespace_only_pieces
  message(FATAL_ERROR "SentencePiece is ${SENTENCEPIECE_VERSION}; choir's tokenizers need 0.1.96 or later")
endif()
find_path(RANDOM123_INCLUDE Random123/philox.h REQUIRED)

if(CHOIR_MPI STREQUAL "ON")
  find_package(MPI REQUIRED COMPONENTS C)
elseif(CHOIR_MPI STREQUAL "AUTO")
  find_package(MPI QUIET COMPONENTS C)
endif()

add_library(choir_features INTERFACE)
target_include_directories(choir_features INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include
                           ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tools)
target_include_directories(choir_features SYSTEM INTERFACE ${SENTENCEPIECE_INCLUDE} ${RANDOM123_INCLUDE})
target_link_libraries(choir_features INTERFACE OpenMP::OpenMP_C Threads::Threads PkgConfig::JANSSON ${CHOIR_ARCHIVE} PkgConfig::ZLIB
                      PkgConfig::XXHASH PkgConfig::PCRE2 PkgConfig::UTF8PROC ${SENTENCEPIECE_TRAIN_LIBRARY} ${SENTENCEPIECE_LIBRARY} m)

if(CHOIR_MPI STREQUAL "ANY")
  target_compile_definitions(choir_features INTERFACE CHOIR_MPI CHOIR_MPI_ANY)
  set(MPI_C_LIBRARIES "found when a program starts")
elseif(MPI_C_FOUND)
  target_link_libraries(choir_features INTERFACE MPI::MPI_C)
  target_compile_definitions(choir_features INTERFACE CHOIR_MPI)
endif()

message(STATUS "choir: OpenMP        ${OpenMP_C_VERSION}")
message(STATUS "choir: jansson       ${JANSSON_VERSION}")
message(STATUS "choir: libarchive    ${ARCHIVE_VERSION}")
message(STATUS "choir: zlib          ${ZLIB_VERSION}")
message(STATUS "choir: xxHash        ${XXHASH_VERSION}")
message(STATUS "choir: PCRE2         ${PCRE2_VERSION}")
message(STATUS "choir: utf8proc      ${UTF8PROC_VERSION}")
message(STATUS "choir: SentencePiece ${SENTENCEPIECE_VERSION}")
message(STATUS "choir: Random123     ${RANDOM123_INCLUDE}")
message(STATUS "choir: MPI           ${MPI_C_LIBRARIES}")
message(STATUS "choir: sanitizers    ${CHOIR_SANITIZE}")
