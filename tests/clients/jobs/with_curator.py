"""curator's LLM in batch mode: a list of prompts becomes a data set of answers. Prints what came of it as JSON."""

import json

from bespokelabs import curator

llm = curator.LLM(model_name="echo", backend="openai", batch=True, backend_params={"batch_check_interval": 1})
found = llm(["one", "two", "three"])
print(json.dumps({"answers": list(found.dataset["response"])}))
