# libchoir_infer.so: what loads a model, generates and scores, for programs that do not train. The linker takes from
# libchoir.a what these functions reach, so that neither the training loop nor libarchive comes along (docs/embedding.md).
set(CHOIR_INFER_FUNCTIONS
  choir_version choir_error_message choir_error_name choir_notices choir_checkpoint_find
  choir_model_load choir_model_free choir_model_config choir_model_routing choir_model_set_routing choir_model_forward
  choir_model_options_default choir_generate_options_default choir_generate choir_end_name choir_generate_result_clear
  choir_fill_options_default choir_fill choir_config_mask_token
  choir_session_options_default choir_session_create choir_session_advance choir_session_rewind choir_session_length
  choir_session_routing choir_session_free choir_score_options_default choir_score choir_score_result_clear
  choir_tokenizer_load choir_tokenizer_encode choir_tokenizer_decode choir_tokenizer_bytes choir_tokenizer_piece
  choir_tokenizer_eos choir_tokenizer_vocab_size choir_tokenizer_free)
list(JOIN CHOIR_INFER_FUNCTIONS "; " functions)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/infer.map CONTENT "CHOIR_1 { global: @functions@; local: *; };\n" @ONLY)
list(TRANSFORM CHOIR_INFER_FUNCTIONS PREPEND "LINKER:-u," OUTPUT_VARIABLE wanted)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/infer.c CONTENT "typedef int choir_nothing_of_its_own;\n")
set(unless_tested EXCLUDE_FROM_ALL)
if(CHOIR_TESTS AND NOT CHOIR_SANITIZE)
  set(unless_tested)
endif()
add_library(choir_infer SHARED ${unless_tested} ${PROJECT_BINARY_DIR}/infer.c)
set_target_properties(choir_infer PROPERTIES VERSION ${CHOIR_LIBRARY_VERSION} SOVERSION 1 LINKER_LANGUAGE CXX)
target_link_options(choir_infer PRIVATE -Wl,--version-script=${PROJECT_BINARY_DIR}/infer.map ${wanted}
                    -Wl,--as-needed -Wl,--gc-sections)
target_link_libraries(choir_infer PRIVATE choir_static)
target_include_directories(choir_infer INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include)
add_library(choir::choir_infer ALIAS choir_infer)
