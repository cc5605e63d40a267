#!/bin/bash
# SPDX-License-Identifier: MIT
# tests/integration/test_completion.sh - what shells complete is what the command takes
. "$(dirname "$0")/../lib.sh"

for shell in bash zsh fish; do
    "$SPILLWAY" completion $shell >"$TEST_TMP/$shell"
done

# complete_bash WORD...: what bash offers for the last one. Options of completion have no meaning outside of it.
complete_bash() {
    bash -c 'compopt() { :; }
        . "$1"; shift
        COMP_WORDS=(spillway "$@") COMP_CWORD=$#
        _spillway && printf "%s\n" "${COMPREPLY[@]}"' - "$TEST_TMP/bash" "$@"
}
# The options of a command, as its help has them.
options_of() {
    "$SPILLWAY" "$@" --help | sed -n 's/^  \(--[a-z-]*\).*/\1/p' | sort -u
}

begin "bash: every command, every verb, every option of the help, and no other"
commands=$("$SPILLWAY" --help | sed -n '/^usage/,/^A first store/s/^  \([a-z][a-z]*\) .*/\1/p')
expect_equal "$(sort <<<"$commands")" "$(complete_bash "" | sort)" "commands"
expect_equal "format" "$(complete_bash form)"
for command in $commands; do
    [ "$command" != help ] || continue
    verbs=$("$SPILLWAY" "$command" --help | sed -n "/^Examples/,\$d; s/^  \([a-z][a-z]*\)  *.*/\1/p")
    [ -z "$verbs" ] || expect_equal "$(sort <<<"$verbs")" "$(complete_bash "$command" "" | sort)" "verbs of $command"
    for verb in ${verbs:-""}; do
        expect_equal "$(options_of "$command" ${verb:+"$verb"})" "$(complete_bash "$command" ${verb:+"$verb"} -- | sort -u)" \
            "options of $command $verb"
    done
done

begin "bash: values, also after an equals sign, and names of files, also after a comma"
expect_equal "randread randrw randwrite" "$(complete_bash bench --rw rand | sort | paste -s -d' ')"
expect_equal "randread randrw randwrite" "$(complete_bash bench --rw = rand | sort | paste -s -d' ')"
expect_equal "read" "$(complete_bash bench --rw = rea | grep -x read)"
touch "$TEST_TMP/a.img" "$TEST_TMP/b.img"
cd "$TEST_TMP" || exit 1
expect_equal "a.img" "$(complete_bash format --devices a.)"
expect_equal "a.img,b.img" "$(complete_bash format --devices a.img,b.)"
expect_equal "a.img,b.img" "$(complete_bash run --deepspeed a.img,b.)"
expect_equal "b.img" "$(complete_bash format b.)"
expect_equal "" "$(complete_bash format --partitions "")"
cd "$ROOT" || exit 1

begin "zsh reads it, and completes in a terminal"
if command -v zsh >/dev/null; then
    expect_exit 0 zsh -n "$TEST_TMP/zsh"
    mkdir "$TEST_TMP/functions"
    cp "$TEST_TMP/zsh" "$TEST_TMP/functions/_spillway"
    # Its line editor needs a terminal: one zsh is the terminal of another, which shows the line at Ctrl-X.
    cat >"$TEST_TMP/terminal.zsh" <<'END_OF_ZSH'
zmodload zsh/zpty
export TERM=dumb
zpty shell zsh -f -i
zpty -w shell "PS1=; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w shell "show() { print -r -- \"line[\$BUFFER]\" }; zle -N show; bindkey '^X' show; echo rea''dy"
zpty -r -m shell text '*ready*'
zpty -w -n shell $2$'\t\x18'
zpty -r -m shell text '*line\[*\]*'
print -r -- $text
zpty -d shell
END_OF_ZSH
    complete_zsh() {
        expect_exit 0 timeout 60 zsh -f "$TEST_TMP/terminal.zsh" "$TEST_TMP/functions" "$1"
        expect_output "line[$2]"
    }
    complete_zsh "spillway comp" "spillway completion "
    complete_zsh "spillway format --chu" "spillway format --chunk="
    complete_zsh "spillway bench --rw=randre" "spillway bench --rw=randread "
    complete_zsh "spillway state exp" "spillway state export "
else
    skip "no zsh"
fi

begin "fish reads it, and offers what bash does"
if command -v fish >/dev/null; then
    expect_exit 0 fish -n "$TEST_TMP/fish"
    offered() {
        HOME=$TEST_TMP fish --no-config -c 'source $argv[1]; complete -C $argv[2]' "$TEST_TMP/fish" "$1" | cut -f1
    }
    expect_equal "$("$SPILLWAY" state --help | sed -n "/^Examples/,\$d; s/^  \([a-z][a-z]*\)  *.*/\1/p" | sort)" "$(offered "spillway state " | grep '^[a-z]*$' | sort)"
    for words in format "state export" bench; do
        read -r -a command <<<"$words"
        expect_equal "$(options_of "${command[@]}")" "$(offered "spillway $words --" | grep '^--' | sort -u)" "options of $words"
    done
else
    skip "no fish"
fi

begin "without a shell, or for another, it is wrong usage"
expect_exit 2 "$SPILLWAY" completion
expect_output "bash, zsh or fish"
expect_exit 2 "$SPILLWAY" completion csh
