install(TARGETS choir choir_static choir_program)
install(DIRECTORY include/choir DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(FILES ${CMAKE_BINARY_DIR}/include/choir/version.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/choir)
