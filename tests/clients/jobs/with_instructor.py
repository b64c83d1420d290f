"""instructor's batch processor: typed objects out of a batch. Prints what came of it as JSON.

The echo engine repeats what it is asked, so each prompt is the JSON that a model would make of it.
"""

import json
import time

from instructor.batch import BatchProcessor, filter_successful, get_results_by_custom_id
from pydantic import BaseModel


class Person(BaseModel):
    name: str
    age: int


processor = BatchProcessor("openai/echo", Person)
prompts = ['{"name": "Ada", "age": 36}', '{"name": "Grace", "age": 85}']
processor.create_batch_from_messages(
    messages_list=[[{"role": "user", "content": prompt}] for prompt in prompts],
    file_path="people.jsonl",
    max_tokens=100,
    temperature=0.0,
)
batch_id = processor.submit_batch("people.jsonl")
while processor.get_batch_status(batch_id)["status"] not in {"completed", "failed", "expired", "cancelled"}:
    time.sleep(0.1)
results = processor.retrieve_results(batch_id)
found = get_results_by_custom_id(filter_successful(results))
print(json.dumps({"batch": batch_id, "people": [found[name].result.model_dump() for name in sorted(found)]}))
