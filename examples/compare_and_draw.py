"""Compare two methods at two budgets on one prompt, and draw what their caches hold."""

import kvlab
from kvlab.tasks.shipped_samples import shipped_samples

sample = next(sample for sample in shipped_samples() if sample.name == "needle_in_a_story")
result = kvlab.compare(
    sample.text,
    methods=["snapkv", "keepkv:rule=votes"],
    budgets=[0.1, 0.3],
    answer=sample.answer,
    new_tokens=12,
)
print(result)  # the full cache first; a notebook shows a table

frame = result.frame
nearest = frame[frame["method"] != "full"].nsmallest(1, "mean_kl").iloc[0]
print(f"Nearest to the full cache: {nearest['label']}, {nearest['mean_kl']:.3f} nats per token.")

run = result["keepkv:rule=votes", 0.3]
print(run.views)  # what can be drawn of it
wall = run.view("wall")
print(wall.caption)
wall.save("wall.html")  # .svg and .png need Chromium
run.view("timeline", layer=1, head=0).save("timeline.csv")
