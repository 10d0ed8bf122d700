"""Collects messages of JSON objects for some seconds and looks at them with pandas.

    python examples/messages_to_pandas.py 'plant/#' --seconds 10

Each message is a row: its topic, when it came, and the fields of its object.
"""

from __future__ import annotations

import threading
import time

import pandas as pd
from _arguments import connect, parser

options = parser("Collects messages for some seconds and describes them")
options.add_argument("filter")
options.add_argument("--seconds", type=float, default=10)
options.add_argument("--csv", help="writes the rows there, too")
given = options.parse_args()

rows = []
with connect(given) as node, node.subscribe(given.filter) as messages:
    print(f"collecting {given.filter} for {given.seconds:g} s", flush=True)
    # Closing the stream from another thread ends the loop, also where nothing comes.
    timer = threading.Timer(given.seconds, messages.close)
    timer.start()
    for message in messages:
        try:
            value = message.json()
        except ValueError:
            continue
        fields = value if isinstance(value, dict) else {"value": value}
        rows.append({"topic": message.topic, "at": pd.Timestamp(time.time_ns(), tz="UTC"), **fields})
    timer.cancel()

table = pd.DataFrame(rows)
if table.empty:
    print("no message came")
else:
    print(table.drop(columns="at").groupby("topic").describe().T.to_string())
    if given.csv:
        table.to_csv(given.csv, index=False)
