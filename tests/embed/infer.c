/* Loads a checkpoint and writes: a program that is linked with libchoir_infer alone. */
#include <choir/choir.h>
#include <stdio.h>

int main(int count, char **words) {
  choir_model *model;
  choir_tokenizer *tokenizer;
  choir_generate_options options = CHOIR_GENERATE_OPTIONS_INIT;
  choir_generate_result result;
  const choir_prompt prompt = {.text = "ka"};
  if (count != 2 || choir_model_load(words[1], NULL, &model, &tokenizer)) goto failed;
  options.max_tokens = 8;
  if (choir_generate(model, tokenizer, &prompt, 1, &options, &result)) goto failed;
  puts(result.sequences[0].text);
  choir_generate_result_clear(&result);
  choir_tokenizer_free(tokenizer);
  choir_model_free(model);
  return 0;
failed:
  return fprintf(stderr, "%s\n", choir_error_message()), 1;
}
