# cmake --install: program, Python package, libraries, headers, manual pages, pkg-config file and find_package(choir).
include(CMakePackageConfigHelpers)

# Libraries that libchoir.a needs, by plain names, so that the installed tree may be moved. Not as Requires.private:
# Debian's libarchive.pc then asks for the development files of a dozen more.
set(CHOIR_PRIVATE_LIBRARIES sentencepiece_train sentencepiece archive z xxhash pcre2-8 utf8proc jansson ${OpenMP_C_LIB_NAMES} stdc++ m)
if(MPI_C_FOUND)
  list(PREPEND CHOIR_PRIVATE_LIBRARIES ${MPI_C_LIB_NAMES})
endif()
list(REMOVE_ITEM CHOIR_PRIVATE_LIBRARIES pthread)
list(TRANSFORM CHOIR_PRIVATE_LIBRARIES PREPEND "-l" OUTPUT_VARIABLE CHOIR_PC_LIBRARIES)
string(REPLACE ";" " " CHOIR_PC_LIBRARIES "${CHOIR_PC_LIBRARIES};-pthread")
# From the file's place, since a tree may be moved; on Debian it lies one folder deeper (lib/x86_64-linux-gnu).
file(RELATIVE_PATH CHOIR_PC_PREFIX "${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig" "${CMAKE_INSTALL_PREFIX}")
configure_file(cmake/choir.pc.in choir.pc @ONLY)
configure_package_config_file(cmake/choirConfig.cmake.in choirConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/choir
                              PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file(choirConfigVersion.cmake COMPATIBILITY SameMinorVersion)

install(TARGETS choir choir_static choir_program)
install(DIRECTORY include/choir DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${PROJECT_BINARY_DIR}/include/choir/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/choir)
install(FILES ${PROJECT_BINARY_DIR}/choir.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES ${PROJECT_BINARY_DIR}/choirConfig.cmake ${PROJECT_BINARY_DIR}/choirConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/choir)
install(DIRECTORY python/choir DESTINATION lib/python3/dist-packages PATTERN __pycache__ EXCLUDE) # choir study runs it
install(DIRECTORY include/choir DESTINATION lib/python3/dist-packages/choir/include)
install(FILES vectors/topk.safetensors vectors/expert_choice.safetensors # choir.conformance reads them
        DESTINATION lib/python3/dist-packages/choir/vectors)
install(DIRECTORY configs studies tasks DESTINATION ${CMAKE_INSTALL_DATADIR}/choir)

# A library in /usr/local is found by programs once the system's list of libraries has been made anew.
install(CODE [[
  if("$ENV{DESTDIR}" STREQUAL "")
    execute_process(COMMAND ldconfig OUTPUT_QUIET ERROR_QUIET)
  endif()
]])

# Manual pages and completion come from the program's own option tables.
set(CHOIR_MAN ${PROJECT_BINARY_DIR}/man)
add_custom_command(OUTPUT ${CHOIR_MAN}/choir.1 COMMAND ${CMAKE_COMMAND} -E make_directory ${CHOIR_MAN}
                   COMMAND choir_program help --man ${CHOIR_MAN}
                   COMMAND choir_program help --completion bash > ${CHOIR_MAN}/choir.bash
                   COMMAND choir_program help --completion zsh > ${CHOIR_MAN}/choir.zsh
                   DEPENDS choir_program VERBATIM)
add_custom_target(choir_man ALL DEPENDS ${CHOIR_MAN}/choir.1)
install(DIRECTORY ${CHOIR_MAN}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 FILES_MATCHING PATTERN "*.1")
install(FILES ${CHOIR_MAN}/choir.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME choir)
install(FILES ${CHOIR_MAN}/choir.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _choir)
