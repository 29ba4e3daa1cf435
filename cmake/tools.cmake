# tools/: what the program does beside the library. One set of objects, for the program, the tests and lab/: ${CHOIR_TOOLS}.
file(GLOB CHOIR_TOOL_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/*/*.c)
# Styles, frames and scripts of pages are compiled in.
file(GLOB CHOIR_PAGES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/pages/*.css ${PROJECT_SOURCE_DIR}/tools/pages/*.html
     ${PROJECT_SOURCE_DIR}/tools/pages/*.js)
choir_embed(${PROJECT_BINARY_DIR}/pages.c ${CHOIR_PAGES})
add_library(choir_tools OBJECT ${CHOIR_TOOL_SOURCES} ${PROJECT_BINARY_DIR}/pages.c)
target_link_libraries(choir_tools PUBLIC choir_features)
set(CHOIR_TOOLS $<TARGET_OBJECTS:choir_tools>)
