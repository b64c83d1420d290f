"""autobatcher's stand-in for AsyncOpenAI: calls that are made at once go out as one batch. Prints what came of it.

What it does on top of the SDK takes address and key from its arguments only, so they are handed on.
"""

import asyncio
import json
import os

from autobatcher import BatchOpenAI


async def main() -> None:
    usual = {
        "base_url": os.environ["OPENAI_BASE_URL"],
        "api_key": os.environ["OPENAI_API_KEY"],
        "batch_window_seconds": 0.3,
        "poll_interval_seconds": 0.1,
        "completion_window": "24h",
    }
    chats = BatchOpenAI(**usual, batch_metadata={"job": "autobatcher-chat"})
    said = await asyncio.gather(
        *(
            chats.chat.completions.create(model="echo", messages=[{"role": "user", "content": f"question {number}"}])
            for number in range(12)
        )
    )
    await chats.close()
    vectors = BatchOpenAI(**usual)
    found = await asyncio.gather(
        vectors.embeddings.create(model="echo", input=["a", "b"]),
        vectors.embeddings.create(model="echo", input=["a", "b", "c"]),
    )
    await vectors.close()
    print(
        json.dumps(
            {
                "answers": [one.choices[0].message.content for one in said],
                "dimensions": [len(one.data) for one in found],
            }
        )
    )


asyncio.run(main())
