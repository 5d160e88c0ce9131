"""Judge a claim: "at 20 %, KeepKV is closer to the full cache than H2O", by paired prompts with an interval."""

import numpy as np

import kvlab
from kvlab.common.intervals import mean_intervals

scores = kvlab.evaluate(
    ["few_shot"],
    methods=["h2o", "keepkv"],
    budgets=[0.2],
    samples=12,
    lengths=[256],
    forced=True,  # KL along the full cache's continuation, in place of scores
)
kl = scores.rows.pivot(index=["task", "index"], columns="method", values="kl").astype(float)
saved = (kl["h2o"] - kl["keepkv"]).to_numpy()
(interval,) = mean_intervals(saved[:, None])
assert interval is not None
verdict = "holds" if interval.low > 0 else "does not hold" if interval.high < 0 else "is open"
print(f"KeepKV saves {interval.mean:.3f} nats per token ({interval.low:.3f} to {interval.high:.3f}), n = {len(saved)}")
print(f"prompts where it is closer: {np.mean(saved > 0):.0%}. The claim {verdict} on this model.")
