"""The command line. One file per command, named like it; each imports torch only when it runs."""

import os
import sys
import time

import typer

from segue.cli import (
    answer,
    attention,
    average,
    classify,
    embed,
    eval,  # noqa: A004  (the command, as users type it)
    export,
    fill,
    generate,
    import_,
    info,
    lab,
    lm_eval,
    prepare,
    prepare_examples,
    prepare_pairs,
    recl,
    score,
    similar,
    tag,
    train,
    translate,
)
from segue.cli.terminal import echo, tell
from segue.errors import OtherRankError, SegueError

app = typer.Typer(
    name="segue",
    help="Train and run Transformer-XL language models, which carry memory across segments; with encoders "
    "(BERT), translation models, and Transformers and LSTMs to compare with.",
    epilog="Try: segue info",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("prepare", epilog=prepare.EXAMPLE)(prepare.prepare)
app.command("train", epilog=train.EXAMPLE)(train.train)
app.command("eval", epilog=eval.EXAMPLE)(eval.evaluate)
app.command("generate", epilog=generate.EXAMPLE)(generate.generate)
app.command("score", epilog=score.EXAMPLE)(score.score)
app.command("prepare-pairs", epilog=prepare_pairs.EXAMPLE)(prepare_pairs.prepare_pairs)
app.command("translate", epilog=translate.EXAMPLE)(translate.translate)
app.command("average", epilog=average.EXAMPLE)(average.average)
app.command("embed", epilog=embed.EXAMPLE)(embed.embed)
app.command("similar", epilog=similar.EXAMPLE)(similar.similar)
app.command("fill", epilog=fill.EXAMPLE)(fill.fill)
app.command("prepare-examples", epilog=prepare_examples.EXAMPLE)(prepare_examples.prepare_examples)
app.command("classify", epilog=classify.EXAMPLE)(classify.classify)
app.command("tag", epilog=tag.EXAMPLE)(tag.tag)
app.command("answer", epilog=answer.EXAMPLE)(answer.answer)
app.command("attention", epilog=attention.EXAMPLE)(attention.attention)
app.command("lab", epilog=lab.EXAMPLE)(lab.lab)
app.command("lm-eval", epilog=lm_eval.EXAMPLE)(lm_eval.lm_eval)
app.command("recl", epilog=recl.EXAMPLE)(recl.recl)
app.command("info", epilog=info.EXAMPLE)(info.info)
app.command("import", epilog=import_.EXAMPLE)(import_.import_)
app.command("export", epilog=export.EXAMPLE)(export.export)


@app.callback(invoke_without_command=True)
def _segue(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    if version:
        from segue import __version__

        echo(f"segue {__version__}")
        raise typer.Exit


def main() -> None:
    """Exit with 0 on success, 1 and a one-line message on an error, 2 if the arguments are wrong."""
    try:
        app()
    except OtherRankError:
        time.sleep(
            1
        )  # torchrun ends all ranks as soon as one exits: let the failed rank print its message first
        sys.exit(1)
    except BrokenPipeError:  # the reader of our output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (SegueError, OSError) as error:  # a failing disk is for the user to fix, too
        tell(f"segue: {error}")
        sys.exit(1)
