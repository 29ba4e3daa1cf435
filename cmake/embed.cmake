# A file's bytes, and a NUL, as C: '\x41','\x42',...0
function(choir_embed_bytes file out)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  set(${out} "{\n${bytes}0}" PARENT_SCOPE)
endfunction()

# choir_embed(OUTPUT FILE...): C arrays of files: page.css becomes `const char ch_page_css[]`.
function(choir_embed output)
  set(text "/* Made by CMake of the files that it names. */\n#include \"pages/page.h\"\n")
  foreach(file ${ARGN})
    get_filename_component(name ${file} NAME)
    string(MAKE_C_IDENTIFIER ${name} name)
    choir_embed_bytes(${file} bytes)
    string(APPEND text "const char ch_${name}[] = ${bytes};\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} CONTENT "${text}" @ONLY)
endfunction()

# choir_embed_table(OUTPUT NAME FILE...): `const ch_embedded NAME[]`, a row for each file: its name without the last
# extension, and its text.
function(choir_embed_table output table)
  set(rows "")
  foreach(file ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME_WLE)
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "(................................)" "\\1\"\n \"" bytes "${bytes}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "\\\\x\\1" bytes "${bytes}")
    string(APPEND rows "{\"${name}\",\n \"${bytes}\"},\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} CONTENT "/* Made by CMake of files of the source. */
#include \"base/embedded.h\"
const ch_embedded ${table}[] = {
${rows}{0}};
" @ONLY)
endfunction()

# choir_embed_text(OUTPUT NAME FILE...): one text of all of them, of the source or made: `const char NAME[]`.
function(choir_embed_text output name)
  set(all "")
  foreach(file ${ARGN})
    get_filename_component(file ${file} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} bytes HEX)
    string(APPEND all "${bytes}")
  endforeach()
  string(REGEX REPLACE "(................................)" "\\1\n" all "${all}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," all "${all}")
  file(CONFIGURE OUTPUT ${output} CONTENT "/* Made by CMake of the files that it names. */
extern const char ${name}[];
const char ${name}[] = {
${all}0};
" @ONLY)
endfunction()

# choir_op_args(OUTPUT ARGS HEADER...): the structs of ops' arguments that ARGS names in lines `typedef ch_NAME_args ...`,
# as the headers define them, for compilers of devices.
function(choir_op_args output args)
  set(headers "")
  foreach(file ${args} ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${file})
  endforeach()
  foreach(file ${ARGN})
    file(READ ${PROJECT_SOURCE_DIR}/${file} text)
    string(APPEND headers "${text}")
  endforeach()
  file(READ ${PROJECT_SOURCE_DIR}/${args} text)
  string(REGEX MATCHALL "typedef ch_[a-z0-9_]+_args" names "${text}")
  set(all "/* Made by CMake: structs of the headers of ops. */\n")
  foreach(name ${names})
    string(REPLACE "typedef " "" name "${name}")
    if(NOT headers MATCHES "typedef struct( [a-z_]+)? {[^}]*} ${name};")
      message(FATAL_ERROR "${args}: no header of an op defines ${name}")
    endif()
    string(APPEND all "${CMAKE_MATCH_0}\n")
  endforeach()
  file(CONFIGURE OUTPUT ${output} CONTENT "${all}" @ONLY)
endfunction()
