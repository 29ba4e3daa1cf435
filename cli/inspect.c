/* choir inspect: a page on which the routing of a text can be looked at. */
#include "cli.h"

static cli_inspect_options o;
static const char *out;

static int show(choir_model *model, const choir_tokenizer *tokenizer) {
  if (ch_inspect_page(model, tokenizer, &o.options, out)) return cli_fail();
  printf("%s\n", cli_shown(out));
  return 0;
}

static int run(int count, const char *const *operands) { return cli_inspect_text(&o, operands[0], show); }

static const cli_option options[] = {
    CLI_SEEING_OPTIONS(o, "4096"), {"out", "FILE.html", CLI_OUTPUT, &out, NULL, "the file to write", 1}, {0}};

CLI_VERB(inspect, "inspect", "RUN|CHECKPOINT", 1, 1,
         "write one self-contained HTML page that shows a text and which experts took its tokens",
         "A run directory stands for its newest checkpoint. The page has the text, every token shaded by how many "
         "experts took it, in each layer and in all; pointing at a token shows which experts and their gates, choosing "
         "an expert shows its tokens. Beside it: experts per token, load of the experts, overlap, and the tokens that "
         "each expert likes best. Needs no network, neither to write nor to read.\n\n"
         "Example: choir inspect run --text page.txt --out page.html");
