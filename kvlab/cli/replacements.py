"""Commands and options that went, with what to use now; settings that were options are recognised by name."""

import re

from kvlab.cli.options.signature import SET

COMMANDS = {
    "run": "`kvlab compare --methods METHOD --budgets BUDGET`",
    "chat": "`kvlab live`",
    "killed": "`kvlab restore`",
    "train-less": "`kvlab fit --method less`",
    "profile": "`kvlab fit --method duoattention`",
    "train-mini": "`python -m training.mini` in kvlab's repository",
    "vllm": "`python -m kvlab.extras.vllm`, in the environment that `make vllm` installs",
    "openvino": "`python -m kvlab.extras.engines`",
    "atlas fill": "`python -m kvlab.cli.atlas fill`",
    "atlas ship": "`python -m kvlab.cli.atlas ship`",
    "data": "`kvlab tasks --check FILE`",
    "runs tag": "`kvlab runs label ID --tag NAME --untag NAME`",
    "runs rename": "`kvlab runs label ID --title TITLE`",
    "runs note": "`kvlab runs label ID --note TEXT`",
    "runs star": "`kvlab runs label ID --star` or `--no-star`",
    "runs archive": "`kvlab runs label ID --archive` or `--no-archive`",
    "runs undo": "`kvlab runs bin --restore [KEY]`",
    "prompts show": "`kvlab prompts ls NAME`",
    "prompts rename": "`kvlab prompts save NEW --saved OLD`, then `kvlab prompts rm OLD`",
    "prompts restore": "`kvlab prompts rm --undo NAME`",
    "prefix extend": "`kvlab prefix make NAME --from NAME --file PATH`",
    "prefix fork": "`kvlab prefix make NEW --from NAME`",
    "plugin list": "`kvlab doctor`, which names every plug-in",
}
PART = "`--methods compose:score=snapkv:allocate=adakv:settle=zsmerge`"
FILTER = "`--where NAME=VALUE`, such as --where method=h2o"
OPTIONS = {
    "--score": PART,
    "--allocate": PART,
    "--select": PART,
    "--settle": PART,
    "--messages": "`--file chat.json`",
    "--shards": "`--on ray:parts=N`",
    "--figure": "`kvlab table FOLDER --preset NAME --out FILE.html`",
    "--table": "`kvlab table FOLDER --out FILE.md`",
    "--read-shares": "`--methods full:read=quest:read_share=0.1`",
    "--texts": "`--corpus`",
    "--loader": "`--set loader=FORMAT`",
    **dict.fromkeys(("--kind", "--state", "--method", "--tag", "--answer", "--since", "--until"), FILTER),
    "--reverse": "`--sort -NAME`",
    "--off": "`--no-star` or `--no-archive`",
}


def replacement(error: Exception) -> str:
    """What to use instead of the command or option that the parser did not know; empty if it never was."""
    option = getattr(error, "option_name", "")
    context = getattr(error, "ctx", None)
    if option and type(error).__name__ == "NoSuchOption":
        name = option.removeprefix("--").replace("-", "_")
        helps = [parameter.help for parameter in context.command.params if parameter.name == SET] if context else []
        is_setting = any(f" {name}: " in text for text in helps)
        now = f"`--set {name}=VALUE`" if is_setting else OPTIONS.get(option, "")
        return now and f"{option} is now {now}."
    unknown = re.search(r"No such command '([^']*)'", getattr(error, "message", ""))
    if unknown is None or context is None:
        return ""
    command = unknown[1]
    while context.parent is not None:  # the root is the program
        command = f"{context.info_name} {command}"
        context = context.parent
    return f"kvlab {command} is now {COMMANDS[command]}." if command in COMMANDS else ""
