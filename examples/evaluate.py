"""Score methods on generated prompts: means over prompts with 95 % intervals."""

import kvlab

scores = kvlab.evaluate(
    ["needle", "few_shot"],
    methods=["random", "snapkv", "kvzip"],
    budgets=[0.1, 0.5],
    samples=8,
    lengths=[256],
    question_aware=False,
)
print(scores)

for row in scores.frame.itertuples():
    if row.method != "full":
        interval = f"{row.difference_low:+.2f} to {row.difference_high:+.2f}"
        print(f"{row.task}, {row.method} at {row.budget}: {row.difference:+.2f} ({interval}) from the full cache")

scores.frame.to_csv("scores.csv", index=False)
