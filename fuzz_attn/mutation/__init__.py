"""The audit: would the campaign find the bug? Mutants of kernels, judged on the cases of a default campaign.

What is examined (`subjects`) are *specimens*, edits of the project's kernels that stand for bugs somebody shipped
(`specimens`, `edited_kernels`), or changes of any Triton kernel's IR (`mutants`, `mutations`, `rewriting`). A worker
(`worker`, `examiner`) walks through the campaign's cases (`stream`) with a batch of them, so that each case is drawn,
made and referenced once for all (`bench`); two fixed tolerances are asked on the way (`rules`), and survivors are
looked at for longer (`probes`). The parent (`run`, `crew`) hands out the batches and outlives the workers; `results`
holds what came of it, and `report` says it.
"""
