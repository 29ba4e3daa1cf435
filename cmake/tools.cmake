# tools/: what the program does beside the library. One set of objects, for the program, the tests and bench/: ${CHOIR_TOOLS}.
file(GLOB CHOIR_TOOL_SOURCES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/*/*.c)
# What pages are made of.
file(GLOB CHOIR_PAGES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/pages/*.css ${PROJECT_SOURCE_DIR}/tools/pages/*.html
     ${PROJECT_SOURCE_DIR}/tools/pages/*.js)
choir_embed(${PROJECT_BINARY_DIR}/pages.c ${CHOIR_PAGES})
# The recipes of studies and the configs of their scales are part of the program: it finds them wherever it is installed.
file(GLOB CHOIR_STUDIES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/studies/*.json)
file(GLOB CHOIR_CONFIGS CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/configs/*.json)
choir_embed_table(${PROJECT_BINARY_DIR}/studies.c ch_studies ${CHOIR_STUDIES})
choir_embed_table(${PROJECT_BINARY_DIR}/configs.c ch_configs ${CHOIR_CONFIGS})
add_library(choir_tools OBJECT ${CHOIR_TOOL_SOURCES} ${PROJECT_BINARY_DIR}/pages.c ${PROJECT_BINARY_DIR}/studies.c
            ${PROJECT_BINARY_DIR}/configs.c)
target_link_libraries(choir_tools PUBLIC choir_features)
set(CHOIR_TOOLS $<TARGET_OBJECTS:choir_tools>)
