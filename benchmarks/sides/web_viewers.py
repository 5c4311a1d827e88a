"""People who watch one run, as their browsers do: each polls the live part of the run and, when that changed, fetches
the new points of its charts, over one kept connection.

    python web_viewers.py URL VIEWERS SECONDS RAMP < {"paths": {"live", "series"}, "cookies": [...], "version": str}

They come within RAMP seconds. Prints one JSON line: {"live": seconds of each poll, "series": …, "statuses":
{status: count}, "dropped": count}.
"""

import asyncio
import json
import re
import sys
import time
from collections import Counter
from typing import Any

import aiohttp

WAIT = 2.0
"""Seconds between polls of a run that a worker has, as in run.js."""
_VERSION = re.compile(r"v=([^\"&]*)\"")


async def main(url: str, viewers: int, seconds: float, ramp: float, given: dict[str, Any]) -> dict[str, Any]:
    seen: dict[str, Any] = {"live": [], "series": [], "statuses": Counter(), "dropped": 0}
    end = time.monotonic() + seconds
    watching = [
        _watch(url, given, given["cookies"][number % len(given["cookies"])], number * ramp / viewers, end, seen)
        for number in range(viewers)
    ]
    await asyncio.gather(*watching)
    return seen


async def _watch(url: str, given: dict[str, Any], cookie: str, delay: float, end: float, seen: dict[str, Any]) -> None:
    await asyncio.sleep(delay)
    version, last, epoch = given["version"], 0, ""
    link = aiohttp.TCPConnector(limit=1)
    headers = {"Cookie": f"sessionid={cookie}", "HX-Request": "true"}
    async with aiohttp.ClientSession(connector=link, headers=headers) as session:
        while time.monotonic() < end:
            address = f"{url}{given['paths']['live']}?tab=overview&v={version}"
            status, text = await _get(session, address, "live", seen)
            if status == 200:
                if (newer := _VERSION.search(text)) is not None:
                    version = newer[1]
                query = f"?after={last}&epoch={epoch}"
                status, text = await _get(session, url + given["paths"]["series"] + query, "series", seen)
                if status == 200:
                    answer = json.loads(text)
                    last, epoch = answer["last"] or last, answer["epoch"]
            await asyncio.sleep(WAIT)


async def _get(session: aiohttp.ClientSession, url: str, kind: str, seen: dict[str, Any]) -> tuple[int, str]:
    began = time.perf_counter()
    try:
        async with session.get(url, allow_redirects=False) as answer:
            text = await answer.text()
    except (aiohttp.ClientError, TimeoutError):
        seen["dropped"] += 1
        return 0, ""
    seen[kind].append(time.perf_counter() - began)
    seen["statuses"][answer.status] += 1
    return answer.status, text


if __name__ == "__main__":
    address, count, seconds, ramp = sys.argv[1:]
    print(json.dumps(asyncio.run(main(address, int(count), float(seconds), float(ramp), json.load(sys.stdin)))))
