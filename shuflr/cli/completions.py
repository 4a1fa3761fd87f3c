"""`shuflr completions`: a script that completes commands, options and file names in a shell."""

import argparse
from importlib import import_module

from shuflr.cli import COMMANDS
from shuflr.cli.options import Parser

SHELLS = ("bash", "zsh", "fish", "powershell", "elvish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def parsers() -> "dict[str, argparse.ArgumentParser]":
    """The parser of every subcommand."""
    table: dict[str, argparse.ArgumentParser] = {}
    for name, command in COMMANDS.items():
        table[name] = Parser(prog=f"shuflr {name}", description=command.summary)
        import_module(command.module).add_arguments(table[name])
    return table


def long_options(parser: argparse.ArgumentParser) -> "list[tuple[str, str]]":
    """The long options of a parser, each with its help."""
    return [
        (option, (action.help or "").replace("%(default)s", str(action.default)))
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    ]


def _bash(options: "dict[str, list[tuple[str, str]]]") -> str:
    cases = "\n".join(f"    {name}) words='{' '.join(o for o, _ in found)}' ;;" for name, found in options.items())
    return f"""_shuflr() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} words
  case ${{COMP_WORDS[1]}} in
{cases}
    *) words='{" ".join(options)}' ;;
  esac
  [[ $COMP_CWORD -eq 1 ]] && words='{" ".join(options)}'
  COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word"))
}}
complete -o filenames -F _shuflr shuflr
"""


def _zsh(options: "dict[str, list[tuple[str, str]]]") -> str:
    cases = "\n".join(f"    {name}) compadd -- {' '.join(o for o, _ in found)} ;;" for name, found in options.items())
    return f"""#compdef shuflr
_shuflr() {{
  if (( CURRENT == 2 )); then
    compadd -- {" ".join(options)}
  fi
  case $words[2] in
{cases}
  esac
  _files
}}
compdef _shuflr shuflr
"""


def _fish(options: "dict[str, list[tuple[str, str]]]") -> str:
    lines = [
        f"complete -c shuflr -n __fish_use_subcommand -a {name} -d '{_plain(COMMANDS[name].summary)}'"
        for name in options
    ]
    for name, found in options.items():
        lines += [
            f"complete -c shuflr -n '__fish_seen_subcommand_from {name}' -l {option[2:]} -d '{_plain(text)}'"
            for option, text in found
        ]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return text.replace("'", "")


def _powershell(options: "dict[str, list[tuple[str, str]]]") -> str:
    cases = "\n".join(
        f"    '{name}' {{ {', '.join(repr(option) for option, _ in found)} }}" for name, found in options.items()
    )
    return f"""Register-ArgumentCompleter -Native -CommandName shuflr -ScriptBlock {{
  param($word, $line, $cursor)
  $parts = $line.ToString() -split ' +'
  $words = if ($parts.Count -le 2) {{ {", ".join(repr(name) for name in options)} }} else {{ switch ($parts[1]) {{
{cases}
  }} }}
  $words | Where-Object {{ $_ -like "$word*" }} | ForEach-Object {{
    [System.Management.Automation.CompletionResult]::new($_)
  }}
}}
"""


def _elvish(options: "dict[str, list[tuple[str, str]]]") -> str:
    cases = "\n".join(f"    &{name}=[{' '.join(option for option, _ in found)}]" for name, found in options.items())
    return f"""set edit:completion:arg-completer[shuflr] = {{|@words|
  var options = [
{cases}
  ]
  if (== (count $words) 2) {{
    put {" ".join(options)}
  }} elif (has-key $options $words[1]) {{
    all $options[$words[1]]
  }}
  edit:complete-filename $words[-1]
}}
"""


_SCRIPTS = {"bash": _bash, "zsh": _zsh, "fish": _fish, "powershell": _powershell, "elvish": _elvish}


def run(arguments: argparse.Namespace) -> int:
    options = {name: long_options(parser) for name, parser in parsers().items()}
    print(_SCRIPTS[arguments.shell](options), end="")
    return 0
