# riddles.awk: counts the sentences of comments and strings that a reader has to decode: seven words and more, of which
# nine of twenty are pronouns and the like ("Those of all even layers, or of all odd ones, that live elsewhere").
# Prints FOLDER SENTENCES RIDDLES for each folder; with -v list=1 the riddles themselves.
BEGIN {
  count = split("what that which who whom whose where of those these this it its they them their one ones others other " \
                "such so as there here then thus all any some none both each either neither nobody somebody everybody " \
                "whoever whatever wherever itself themselves same do does did done has have had is are was were be been " \
                "stands stand", words, " ")
  for (i = 1; i <= count; i++) vague[words[i]]
}
function sentence(text, n, i, word, bad) {
  gsub(/[^A-Za-z_']+/, " ", text)
  n = split(text, word, " ")
  if (n < 7) return
  total[folder]++
  for (i = 1; i <= n; i++) bad += tolower(word[i]) in vague
  if (bad < 0.45 * n) return
  riddles[folder]++
  if (list) print FILENAME ":" line ": " text
}
# Cuts text at ends of sentences, which a capital, a backtick or a parenthesis follows.
function paragraph(text, at) {
  gsub(/[ \t\n]+/, " ", text)
  while (match(text, /[.:;!?] [A-Z`*(\[]/)) {
    sentence(substr(text, 1, RSTART))
    text = substr(text, RSTART + 2)
  }
  sentence(text)
}
FNR == 1 {
  part = split(FILENAME, path, "/")
  folder = path[1] ~ /^(src|tools|python)$/ && part > 2 ? path[1] "/" path[2] : path[1]
  inside = 0
  python = FILENAME ~ /\.py$/
  page = FILENAME ~ /\.md$/
  if (text != "" && was_page) paragraph(text)
  text = ""
  was_page = page
}
page {
  if ($0 ~ /^(    |\||#)/ || $0 ~ /^ *$/ || $0 ~ /^ *[-*] /) {
    line = FNR
    paragraph(text)
    text = ""
  }
  if ($0 !~ /^(    |\||#)/) text = text " " $0
  next
}
python {
  line = FNR
  rest = $0
  if (!inside && match(rest, /"""/)) { inside = 1; text = ""; rest = substr(rest, RSTART + 3) }
  if (inside) {
    if (at = index(rest, "\"\"\"")) { inside = 0; paragraph(text " " substr(rest, 1, at - 1)) } else text = text " " rest
  } else if (match(rest, /#.*/)) paragraph(substr(rest, RSTART + 1))
  next
}
{
  line = FNR
  rest = $0
  while (rest != "") {
    if (inside) {
      sub(/^ *\* /, "", rest)
      at = index(rest, "*/")
      if (!at) { text = text " " rest; break }
      paragraph(text " " substr(rest, 1, at - 1))
      inside = 0
      rest = substr(rest, at + 2)
    } else if (match(rest, /\/\*|"/)) {
      if (substr(rest, RSTART, 1) == "\"") {
        rest = substr(rest, RSTART + 1)
        if (!match(rest, /^([^"\\]|\\.)*"/)) break
        said = said substr(rest, 1, RLENGTH - 1)
        rest = substr(rest, RLENGTH + 1)
        if (rest !~ /^ *$/) { paragraph(said); said = "" }
      } else {
        inside = 1
        text = ""
        rest = substr(rest, RSTART + 2)
      }
    } else break
  }
}
END { if (!list) for (f in total) print f, total[f], riddles[f] + 0 }
