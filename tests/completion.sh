#!/bin/sh
# completion.sh BASH_FILE ZSH_FILE: words that the shells must complete; zsh in a terminal of its own, as it is used.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# wanted SHELL LINE WANTED
wanted() {
  got=$("in_$1" "$2")
  [ "$got" = "$3" ] || { echo "$1: '$2' gives '$got', not '$3'" >&2; failures=$((failures + 1)); }
}

bash_file=$1
in_bash() {
  bash -c ". '$bash_file'; COMP_WORDS=($1); COMP_CWORD=\$((\${#COMP_WORDS[@]} - 1)); _choir; echo \"\${COMPREPLY[*]}\""
}
wanted bash "choir ro" route
wanted bash "choir data b" build
wanted bash "choir help st" "stats study"
wanted bash "choir help ro" "routers route"
wanted bash "choir help expert_" expert_choice
wanted bash "choir help data b" build
wanted bash "choir train --config modern-n" modern-nano
wanted bash "choir init --router qua" ""
wanted bash "choir route --router qua" quantile_balanced
wanted bash "choir route --lo" --logits
wanted bash "choir eval --pl" --plugin
wanted bash "choir finetune --recipe cont" continued
wanted bash "choir train --set router.prio" router.priority=
wanted bash "choir train --set pool = seq" sequence
wanted bash "choir train --set model.router.name = qua" quantile_balanced
wanted bash "choir train --set tied = f" false

if command -v zsh >/dev/null; then
  cp "$2" "$work/_choir"
  : >"$work/page.txt"
  # Ctrl-X shows what the line has become.
  cat >"$work/drive" <<'Z'
zmodload zsh/zpty
cd $1
zpty shell zsh -f -i
zpty -w shell "fpath=($1 \$fpath); autoload -Uz compinit && compinit -u -D; choir() { :; }"
zpty -w shell 'became() { print -r -- "<<$BUFFER>>"; BUFFER=; zle -I; }; zle -N became; bindkey "^X" became; print ready to go on'
zpty -r shell said '*ready to go on*ready to go on*'
zpty -w -n shell "$2"$'\t\x18'
zpty -r shell said '*<<*>>*'
said=${said##*<<}
print -r -- ${said%%>>*}
Z
  in_zsh() { timeout 20 zsh -f "$work/drive" "$work" "$1"; }
  wanted zsh "choir ro" "choir route"
  wanted zsh "choir data b" "choir data build"
  wanted zsh "choir route --lo" "choir route --logits"
  wanted zsh "choir finetune --recipe cont" "choir finetune --recipe continued"
  wanted zsh "choir train --set router.prio" "choir train --set router.priority="
  wanted zsh "choir eval run --text pa" "choir eval run --text page.txt "
else
  echo "NOT TESTED: completion in zsh, which is not installed"
fi
[ $failures = 0 ]
