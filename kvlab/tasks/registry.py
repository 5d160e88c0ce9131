"""All tasks by name."""

from kvlab.core.plugins.load import Registry
from kvlab.tasks import agent_log, blocks, forced_texts, hidden_facts, paraphrases, rule_tasks, ruler, traces
from kvlab.tasks.draft import Task

_SHIPPED = (
    *(hidden_facts.needle, hidden_facts.needle_decoded, hidden_facts.needle_multikey, hidden_facts.needle_multivalue),
    *(hidden_facts.needle_multiquery, hidden_facts.variable_tracking),
    *(blocks.common_words, blocks.frequent_words, blocks.key_value, blocks.copy, blocks.few_shot),
    *(hidden_facts.arithmetic, forced_texts.perplexity, forced_texts.next_token_kl),
    *(rule_tasks.instructions, rule_tasks.rules_recited, rule_tasks.leakage, rule_tasks.secret),
    *(hidden_facts.questions, hidden_facts.turns),
    *(paraphrases.needle_paraphrased, paraphrases.needle_mixed, traces.state_tracing),
    *(traces.arithmetic_chain, traces.list_recall, agent_log.agent_log),
    *ruler.RULER_TASKS,
)

TASKS: Registry[Task] = Registry("task", {task.name: task for task in _SHIPPED})


def register_task(task: Task) -> Task:
    """Register a task under its name; raises UserError if the name is taken."""
    TASKS.add(task.name, task)
    return task


def get_task(name: str) -> Task:
    """Return the named task; raises UserError listing the known ones."""
    if name not in TASKS:
        raise TASKS.unknown(name)
    return TASKS[name]
