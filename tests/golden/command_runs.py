"""Commands of the golden corpus: what each says of options that make no sense, and whole outputs of seeded runs.

All run in a folder with the files below. A refusal is one line on stderr and leaves no file; one that is not says so.
"""

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.csv as pc

from commands.command_tables import COUNT, arrow_table, eigenveil, files_in, rows, written
from eigenveil import PrivatePCA
from eigenveil.plan.spectrum import Spectrum
from golden.texts import FRAME

__all__ = ["command_errors", "command_runs"]

# What many lines say, by the word that stands for it.
_WORDS: Final = {
    "PRIVATE": "-k 2 --epsilon 1 --delta 1e-6 --row-bound 12",
    "BUDGET": "--epsilon 0.8 --delta 1e-6",
    "EXACT": "-k 2 --no-privacy",
    "PEERS": "simulate people.csv --sites 5 --graph",
    "PLAN": "plan -n 5000 -k 2 --epsilon 1 --delta 1e-6",
    "STUDY": "study new study.toml --authority authority",
    "TASK": "--columns age,weight -k 1 --epsilon 1 --delta 1e-6 --row-bound 3",
}
ERRORS: Final = """
fit people.csv -k 2
fit people.csv -k 2 --delta 1e-6
fit people.csv PRIVATE --no-privacy
fit people.csv EXACT --delta 0.1
fit people.csv -k 2 --epsilon 1 --row-bound 1
fit people.csv PRIVATE --row-bound none
fit people.csv PRIVATE --epsilon 0
fit people.csv PRIVATE --epsilon inf
fit people.csv PRIVATE --delta 2
fit people.csv PRIVATE --row-bound -1
fit people.csv PRIVATE -k 9
fit people.csv PRIVATE -k 0
fit people.csv PRIVATE -k some
fit people.csv PRIVATE -k 1.5
fit people.csv PRIVATE --column-bounds 1
fit people.csv PRIVATE --column-bounds 1,0
fit people.csv PRIVATE --origin 1,2
fit people.csv PRIVATE --scale a,b
fit people.csv PRIVATE --rounds 0
fit people.csv PRIVATE --seed -1
fit people.csv PRIVATE --person who
fit people.csv PRIVATE --drop what
fit gaps.npy PRIVATE
fit gaps.npy PRIVATE --missing fill
fit gaps.npy PRIVATE --missing counts --method power
fit totals.csv PRIVATE
fit people.csv PRIVATE -o none/m.safetensors
fit people.csv PRIVATE -o model.pickle
fit people.csv PRIVATE -o .
fit poeple.csv PRIVATE
fit text.csv PRIVATE
fit empty.csv PRIVATE
fit ragged.csv PRIVATE
fit latin.csv PRIVATE
fit headless.csv PRIVATE
fit broken.parquet PRIVATE
fit broken.npz PRIVATE
fit people.doc PRIVATE
stream people.csv
stream people.csv --no-privacy
stream people.csv EXACT -k 9
stream people.csv EXACT -k 0
stream people.csv -k 2 --delta 1e-6
stream people.csv EXACT --person age
stream people.csv PRIVATE --person who
stream people.csv PRIVATE --no-privacy
stream people.csv -k 2 --epsilon 1 --row-bound 1
stream people.csv PRIVATE --row-bound none
stream people.csv EXACT --adapt 0.2,0.1
stream people.csv EXACT --adapt 0.2
stream people.csv EXACT --forget 0
stream people.csv EXACT --forget 1.5
stream people.csv EXACT --block-size 0
stream people.csv EXACT --memory-limit '64 parsecs'
stream people.csv EXACT --memory-limit 1KB
stream people.csv PRIVATE --publish continual
stream people.csv EXACT --horizon 9
stream people.csv EXACT --publish continual --horizon 9
stream people.csv EXACT --noise-target 9
stream people.csv PRIVATE --publish continual --horizon 9
stream people.csv PRIVATE --noise-target -1
stream people.csv PRIVATE --publish block --sync-every 9
stream people.csv --resume
stream people.csv --resume --state none --no-privacy --epsilon 1
stream people.csv --resume --state none --bounds none
stream people.csv --resume --state none -k 2 --forget 0.5
stream people.csv EXACT --features 5
stream people.csv EXACT --drop what
stream people.csv EXACT --format npy --no-header
bounds people.csv
bounds people.csv --delta 1e-6
bounds people.csv --epsilon 1
bounds people.csv --no-privacy --epsilon 1
bounds people.csv --no-privacy --delta 1e-6
bounds people.csv --no-privacy --total 1
bounds people.csv BUDGET --total 0.5
bounds people.csv BUDGET --quantile 1.5
bounds people.csv BUDGET --search-range 3
bounds people.csv BUDGET --search-range 3,1
bounds people.csv BUDGET --center 1,2
bounds people.csv BUDGET --scale x
bounds people.csv BUDGET --origin 1,2
bounds people.csv BUDGET --center none --origin 1
bounds people.csv BUDGET --per-column -k 2
bounds people.csv BUDGET --per-column --center none
bounds people.csv BUDGET -o bounds.txt
bounds people.csv BUDGET --person nobody
bounds people.csv --epsilon -1 --delta 1e-6
bounds people.csv BUDGET --neighbours zero-out --epsilon 0.01
spectrum people.csv -o s.json
spectrum people.csv -o s.json --delta 1e-6
spectrum people.csv -o s.json --epsilon 1 --delta 1e-6
spectrum people.csv -o s.json BUDGET --row-bound -1
spectrum people.csv -o s.txt BUDGET --row-bound 12
spectrum people.csv -o s.json BUDGET --column-bounds 1
spectrum people.csv -o s.json BUDGET --row-bound 12 --total 0.1
plan -n 5 -d 3 -k 1 --delta 0.1
plan -n 5 -d 3 -k 1 --epsilon 1
PLAN
plan -n many -d 3 -k 1 --epsilon 1 --delta 0.1
plan -n 2.5 -d 3 -k 1 --epsilon 1 --delta 0.1
plan -n inf -d 3 -k 1 --epsilon 1 --delta 0.1
plan -n 1 -d 3 -k 1 --epsilon 1 --delta 0.1
plan -n 5 -d 3 -k 4 --epsilon 1 --delta 0.1
plan -n 5 -d 3 -k 1 --epsilon 0 --delta 0.1
plan -n 5 -d 3 -k 1 --epsilon 1 --delta 1
plan -n 300 -d 10 -k 1 --epsilon 1 --delta 1e-6 --trust masked
PLAN -d 6 --explained 0.5 --decay 1
PLAN -d 6 --spectrum a.json --public-data b.csv --from-model c.safetensors
PLAN -d 6 --bound-usage 1.5
PLAN -d 6 --explained 0.1
PLAN -d 6 --decay -1
PLAN -d 6 --row-bound 0
PLAN -d 6 --public-data b.csv --bound-usage 0.5 --row-bound 1
PLAN -d 6 --drop name
PLAN -d 6 --scale 2
PLAN -d 6 --scale private --center none
PLAN -d 6 --sites 5001
PLAN -d 6 --sites 0
PLAN -d 6 --colluders 0
PLAN -d 1
PLAN -d 6 --sites 3 --survivors 4
PLAN -d 6 --sites 3 --survivors some
PLAN -d 6 --trust nobody
PLAN -d 6 --trust masked
PLAN -d 6 --traffic lots
PLAN -d 6 --memory-limit -1
PLAN -d 6 --method krylov
PLAN -d 6 --epsilons one,two
PLAN -d 6 --epsilons 1,0
PLAN -d 6 --plot plan.pdf
PLAN -d 6 --public-data none.csv
PLAN -d 6 --spectrum a.npy
PLAN -d 6 --spectrum none.json
PLAN -d 6 --from-model none.safetensors
PLAN --spectrum list.json --row-bound 1
PLAN --public-data people.csv -d 4
PLAN --spectrum list.json -d 2
PLAN -k 4 --spectrum list.json
PLAN --spectrum spectrum.json --row-bound 3
PLAN --public-data people.csv --scale 0
PLAN --public-data people.csv --scale 1,2
PLAN --public-data gaps.npy
PLAN --spectrum broken.json
PLAN --spectrum other.json
PLAN --spectrum bad.txt
PLAN --spectrum empty.csv
PLAN --spectrum low.csv
PLAN --spectrum words.json
PLAN --spectrum nested.json
PLAN --spectrum header.csv
PLAN --spectrum pairs.csv
PLAN --spectrum latin.csv
simulate people.csv EXACT
simulate people.csv EXACT --split by:
simulate people.csv EXACT --sites 3 --split evenly
simulate people.csv EXACT --sites 3 --split by:age
simulate people.csv EXACT --split by:ward
simulate people.csv EXACT --sites 3 --person who
simulate people.csv EXACT --sites 2000
simulate people.csv -k 2 --sites 3
simulate people.csv EXACT --sites 3 --epsilon 1
simulate people.csv -k 2 --sites 3 --epsilon 1
simulate people.csv EXACT --sites 3 --trust site
simulate people.csv EXACT --sites 3 --survivors 3
simulate people.csv EXACT --sites 3 --colluders 1
simulate people.csv EXACT --sites 3 --trust masked --survivors most
simulate people.csv EXACT --sites 3 --trust masked --survivors 2
simulate people.csv EXACT --sites 3 --trust masked --quorum 3
simulate people.csv EXACT --sites 3 --trust masked --topology tree
simulate people.csv EXACT --sites 3 --trust masked --method merge
simulate people.csv EXACT --sites 6 --trust masked --survivors 5 --dead 1 --dead 4
simulate people.csv EXACT --sites 3 --fanout 3
simulate people.csv PRIVATE --sites 3 --epsilon some
simulate people.csv PRIVATE --sites 3 --trust both
simulate people.csv PRIVATE --sites 3 --epsilon 3,1
simulate people.csv PRIVATE --sites 3 --row-bound none
simulate people.csv EXACT --sites 3 -k 9
simulate people.csv EXACT --sites 3 -k 0
simulate people.csv EXACT --sites 3 --seed -1
simulate people.csv EXACT --sites 3 --method covariance --rounds 3
simulate people.csv EXACT --sites 3 --rounds 0
simulate people.csv EXACT --sites 3 --tolerance 2
simulate people.csv EXACT --sites 3 --local-steps decay:x
simulate people.csv EXACT --sites 3 --local-steps 4
simulate people.csv PRIVATE --sites 3 --method fedpower --local-steps decay:4
simulate people.csv PRIVATE --sites 3 --method dr-svd
simulate people.csv EXACT --sites 3 --participation two
simulate people.csv EXACT --sites 3 --method power --participation without-replacement:4
simulate people.csv PRIVATE --sites 3 --method power --participation with-replacement:2
simulate people.csv EXACT --sites 3 --quorum most
simulate people.csv EXACT --sites 3 --quorum 4
simulate people.csv EXACT --sites 3 --quorum 1.5
simulate people.csv EXACT --sites 3 --loss 1.5
simulate people.csv EXACT --sites 3 --delay -1
simulate people.csv EXACT --sites 3 --dead 3
simulate people.csv EXACT --sites 3 --dead 1
simulate people.csv EXACT --sites 3 --dead any:4
simulate people.csv EXACT --sites 3 --scale a
simulate people.csv EXACT --sites 3 --split skewed --scale 1,2
simulate people.csv EXACT --sites 3 -o model.pickle
simulate gone.csv EXACT --sites 3
simulate people.npy EXACT --split by:age
PEERS ring EXACT --topology tree
PEERS ring EXACT --fanout 3
PEERS ring PRIVATE --trust site
PEERS ring EXACT --survivors 3
PEERS ring EXACT --local-steps 4
PEERS ring EXACT --align sign
PEERS ring EXACT --participation without-replacement:2
PEERS ring PRIVATE --person-sites 2
PEERS ring EXACT --method merge
simulate people.csv EXACT --sites 5 --consensus tree
simulate people.csv EXACT --sites 5 --steps 3
simulate people.csv EXACT --sites 5 --noise-graph ring
simulate people.csv EXACT --sites 5 --restarts 1
simulate people.csv EXACT --sites 5 --method segments
PEERS ring EXACT --colluders 1
PEERS ring PRIVATE --colluders 4
PEERS ring EXACT --noise pairwise
PEERS ring EXACT --noise independent
PEERS ring EXACT --noise-graph ring
PEERS wheel EXACT
PEERS random-regular:7 EXACT
PEERS ring PRIVATE --noise-graph wheel
PEERS path PRIVATE
simulate people.csv --graph complete EXACT --sites 1
PEERS ring EXACT --consensus tree --steps 3
PEERS ring EXACT --steps 0
PEERS ring PRIVATE --steps 3
PEERS ring EXACT --method krylov --steps 3
PEERS ring EXACT --restarts 1
PEERS ring EXACT --quorum 2
PEERS ring EXACT --method segments --oversample 2
PEERS ring PRIVATE --epsilon 3,1
PEERS ring PRIVATE --row-bound none
PEERS ring EXACT --dead 7
simulate people.csv --graph ring EXACT
PEERS star EXACT --dead 0 --seed 1
PEERS ring PRIVATE --dead 2 --seed 1
simulate gaps.npy --sites 5 --graph ring EXACT
recommend fit plays.csv -k 3
recommend fit plays.csv -k 3 --epsilon 1 --no-privacy
recommend fit plays.csv -k 3 --delta 1e-6 --no-privacy
recommend fit plays.csv -k 3 --epsilon 1 --neighbours add-remove
recommend fit plays.csv -k 3 --epsilon 1 --neighbours add-remove --delta 1e-6
recommend fit plays.csv -k 3 --epsilon 1 --users-at-least 100
recommend fit plays.csv -k 3 --epsilon 1 --unit item --neighbours replace-one
recommend fit plays.csv -k 3 --epsilon 1 --normalise both
recommend fit plays.csv -k 3 --epsilon 1 --survivors 2
recommend fit plays.csv -k 3 --epsilon 1 --colluders 2
recommend fit plays.csv -k 3 --epsilon 1 --keep-items 1
recommend fit plays.csv -k 3 --epsilon 1 --seed -1
recommend fit plays.csv -k 3 --epsilon 1 --history 0
recommend fit plays.csv -k 3 --epsilon 0
recommend fit plays.csv -k 99 --epsilon 1
recommend fit plays.csv -k 3 --epsilon 1 --min-rating 3
recommend fit plays.csv -k 3 --epsilon 1 --user person
recommend fit plays.csv -k 3 --epsilon 1 --user item
recommend fit plays.csv -k 3 --epsilon 1 --item-degrees none.csv
recommend fit plays.csv -k 3 --epsilon 1 --item-degrees header.csv
recommend fit plays.csv -k 3 --epsilon 1 -o items.txt
recommend fit plays.csv -k 3 --epsilon 1 --trust masked
recommend fit plays.csv -k 3 --epsilon 1e-4
recommend top known.safetensors --have i0
recommend top space.safetensors
recommend top space.safetensors --have polka
recommend top space.safetensors --from plays.csv
recommend top space.safetensors --from plays.csv --who zoe
recommend top space.safetensors --have i0 --who u1
recommend evaluate plays.csv -k 3
recommend evaluate plays.csv -k 3 --epsilon 1 --share 1
recommend evaluate plays.csv -k 3 --epsilon 1 --share 0.1 --test plays.csv
recommend evaluate plays.csv -k 3 --epsilon 1 --test plays.csv
transform gaps.npy -m known.safetensors -o scores.csv
transform people.npy -m known.safetensors -o scores.doc
transform people.csv -m list.json -o scores.csv
transform text.csv -m known.safetensors -o scores.csv
transform people.csv -m none.safetensors -o scores.csv
inspect none.safetensors
inspect people.csv
account none.safetensors
account
account --gaussian 4
account --delta 1e-6 --gaussian 4 --epsilon 1
account --delta 1e-6 --laplace 4 --releases 2
account --delta 1e-6 --releases 2
account --delta 1e-6 --gaussian four
account --delta 1e-6 --gaussian 4x
account --delta 1e-6 --gaussian 4x2.5
account --delta 1e-6 --gaussian 4x0
account --delta 1e-6 --gaussian 4x99999999999
account --delta 1e-6 --gaussian 0
account --delta 1e-6 --laplace nan
account --delta 1e-6 --laplace inf
account --delta 1e-6 --laplace 0.001x1000
account --delta 1e-6 --epsilon 0
account --delta 1e-6 --epsilon inf
account --delta 1e-6 --epsilon 1 --releases 0
account --epsilon 1 --delta 0
account --gaussian 1 --delta 1
account --gaussian 1 --delta nan
account --mu 0.2
account --mu 0 --delta 1e-6
account --mu inf --delta 1e-6
account --epsilon 1 --delta 1e-6 --json
account people.csv
account known.safetensors
STUDY --address hub:1 --columns age,weight -k 1 --row-bound 3
STUDY --address hub:1 TASK --no-privacy
STUDY TASK
STUDY --address hub TASK
STUDY --address hub:1 -k 2 --epsilon 1 --delta 1e-6 --row-bound 3
STUDY --address hub:1 TASK --row-bound none
STUDY --address hub:1 TASK -k 9
STUDY --address hub:1 TASK --person age
STUDY --address hub:1 TASK --quorum 3
STUDY --address hub:1 TASK --survivors 2
STUDY --address hub:1 TASK --site eve
STUDY --address hub:1 TASK --fanout 2
STUDY --address hub:1 TASK --node-address 'node 1=a:1'
STUDY TASK --graph ring --fanout 2
STUDY --address hub:1 TASK --graph ring
STUDY TASK --graph ring
STUDY TASK --graph rung
STUDY --address hub:1 TASK --steps 3
STUDY --address hub:1 TASK --noise pairwise
STUDY --address hub:1 TASK --size 'north=many'
STUDY --address hub:1 TASK --neighbours zero-out
"""
# Each with the files that the ones before it wrote.
RUNS: Final = """
fit people.csv PRIVATE --seed 1 -o private.safetensors
fit people.csv PRIVATE --row-bound private --epsilon 4 --seed 1 -o found.safetensors
fit people.csv -k 2 --epsilon 8 --delta 1e-6 --scale private --seed 1 -o units.safetensors
fit people.csv EXACT -o exact.safetensors
fit zeros.npy PRIVATE --seed 1 -o zeros.safetensors
fit gaps.npy PRIVATE --missing counts --seed 1 -o gaps.safetensors
fit visits.csv PRIVATE --person patient --drop hospital --seed 1 -o visits.safetensors
inspect private.safetensors
inspect units.safetensors
inspect exact.safetensors --loadings 2
inspect space.safetensors --loadings 2
account private.safetensors found.safetensors
account --epsilon 99 --delta 1e-6
account private.safetensors visits.safetensors
transform people.csv -m private.safetensors -o scores.csv
bounds people.csv BUDGET -k 2 --total 2 --seed 1 -o bounds.json
bounds people.csv --epsilon 5 --delta 1e-6 --per-column --seed 1
bounds people.csv --no-privacy
bounds people.csv --epsilon 0.01 --delta 1e-6 --seed 1
bounds visits.csv --person patient --drop hospital --epsilon 2 --delta 1e-6 --neighbours zero-out --seed 1
inspect bounds.json
spectrum people.csv BUDGET --row-bound 12 --mean-bound 3 --total 2 --seed 1 -o released.json
spectrum people.csv --epsilon 0.01 --delta 1e-6 --row-bound 12 --seed 1 -o hidden.json
plan -n 5000 -d 6 -k 2 --epsilon 1 --delta 1e-6 --epsilons 0.5,2
plan -n 5000 -d 6 -k 2 --epsilon 1 --delta 1e-6 --sites 5 --trust masked --method covariance --epsilons 1
plan -n 5000 -d 6 -k 2 --epsilon 1 --delta 1e-6 --decay 0 --method covariance --epsilons 1
plan -n 5000 -d 6 -k 1 --epsilon 1 --delta 1e-6 --explained 0.7 --method covariance --epsilons 1
plan -n 50 -d 40 -k 2 --epsilon 0.05 --delta 1e-6 --epsilons 0.05
plan -n 2000 -k 2 --epsilon 1 --delta 1e-6 --spectrum released.json --epsilons 1
stream people.csv PRIVATE --seed 1 --no-state -o streamed.safetensors
stream people.csv EXACT --no-state -o exact-stream.safetensors
simulate people.csv EXACT --sites 4 --seed 3
simulate people.csv PRIVATE --sites 5 --guarantee --seed 1
simulate people.csv PRIVATE --sites 5 --trust site --compare --seed 1
simulate people.csv PRIVATE --sites 5 --trust both --epsilon 3,1 --guarantee --seed 1
simulate people.csv PRIVATE --sites 9 --trust masked --survivors 0.7 --colluders 2 --dead any:2 --seed 3
simulate people.csv EXACT --sites 8 --method power --topology tree --fanout 3 --seed 1
simulate people.csv EXACT --sites 6 --quorum 4 --dead 2@2 --duplicate 0.4 --delay 3 --loss 0.1 --seed 1
simulate people.csv EXACT --sites 3 --method power --rounds 60 --tolerance 0 --center none --seed 1
PEERS ring EXACT --seed 1
PEERS complete PRIVATE --seed 1 --guarantee
PEERS ring PRIVATE --noise independent --seed 1
PEERS ring EXACT --dead 2 --seed 1
recommend fit plays.csv -k 3 --epsilon 1 --seed 1 -o films.safetensors
recommend top films.safetensors --have i0 --have i3 --first 6
recommend evaluate plays.csv -k 3 --epsilon 1 --seed 3 --first 5
"""
# Numbers that depend on the last bits, and times.
_UNSURE: Final = re.compile(r"\d\.\d+e-\d\d|[\d.,]+ (?:rows/s|s|ms|seconds)\b|(?<=stream )[0-9a-f]{16}")


@contextmanager
def _folder() -> Iterator[Path]:
    """All files that a command is given, in the current folder."""
    from commands.recommend.test_recommend import plays_in
    from commands.simulate.test_simulate import visits

    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        values = rows()
        for kind in ("csv", "npy"):
            written(folder, kind)
        visits(folder)
        plays_in(folder)
        np.save(folder / "zeros.npy", np.zeros((300, 6)))
        np.save(folder / "gaps.npy", np.where(np.arange(values.size).reshape(values.shape) % 97 == 1, np.nan, values))
        pc.write_csv(arrow_table(values, remark=["x123456.789"] * COUNT), folder / "text.csv")
        np.savetxt(folder / "headless.csv", values + 123456, delimiter=",")
        for file, text in {
            "empty.csv": "# nothing\n",
            "ragged.csv": "a,b\n1,2\n123456.789\n",
            "totals.csv": "a,b\n7.5,0.25\n1,2\nTotal,4\n",
            "latin.csv": "h\xf6he,b\n123456.789,2\n1,2\n",
            "broken.parquet": "PK\x03\x04 123456.789",
            "broken.npz": "PK\x03\x04 123456.789",
            "people.doc": "123456.789",
            "list.json": "[4, 1, 0.5]",
            "broken.json": "{",
            "other.json": '{"values": [1]}',
            "bad.txt": "4\nfour\n",
            "low.csv": "4\n-1\n",
            "words.json": '["a", "b"]',
            "nested.json": "[[3, 1], [1, 2]]",
            "header.csv": "variance\n",
            "pairs.csv": "component,variance\n1,3\n2,1\n",
        }.items():
            (folder / file).write_text(text, encoding="latin-1")
        (folder / "spectrum.json").write_text(json.dumps(Spectrum.guessed(4).to_json()))
        PrivatePCA(2, epsilon=None).fit(values).save(folder / "known.safetensors")
        try:
            os.chdir(folder)
            for line in (
                "recommend fit plays.csv -k 3 --epsilon 4 --seed 2 -o space.safetensors",
                "keys init authority --host localhost",
                "keys site north --folder north --authority authority",
                "keys site south --folder south --authority authority",
                "keys site west --folder west --authority authority",
                "keys site east --folder east --authority authority",
            ):
                assert eigenveil(*line.split()).exit_code == 0, line
            yield folder
        finally:
            os.chdir(before)


def _arguments(line: str) -> list[str]:
    for word, meaning in _WORDS.items():
        line = re.sub(rf"\b{word}\b", meaning, line)
    return shlex.split(line)


def command_errors() -> dict[str, str]:
    """By command: each line, its exit code and what it says."""
    said: dict[str, list[str]] = {}
    with _folder() as folder:
        before = files_in(folder)
        for line in ERRORS.strip().splitlines():
            result = eigenveil(*_arguments(line))
            faults = {
                "WROTE": files_in(folder) != before,
                "PRINTED": bool(result.stdout),
                # Under zero-out the number of people is public.
                "QUOTED": "123456" in result.output or (str(COUNT) in result.output and "zero-out" not in line),
                "LINES": len(result.stderr.splitlines()) != 1,
            }
            words = " ".join([result.stderr.strip(), *(name for name, is_so in faults.items() if is_so)])
            arguments = " ".join(_arguments(line)[:2])
            command = arguments if arguments.startswith(("recommend", "study")) else arguments.partition(" ")[0]
            said.setdefault(command, []).append(f"{line}\n  {result.exit_code}: {words.replace(str(folder), '.')}")
    return {command: "\n".join(texts) for command, texts in said.items()}


def command_runs() -> dict[str, str]:
    """By line: all of the output, without what depends on the machine."""
    entries = {}
    with _folder() as folder:
        for line in RUNS.strip().splitlines():
            result = eigenveil(*_arguments(line))
            text = _UNSURE.sub("~", result.output.replace(str(folder), "."))
            # Without the frames, as in the helps.
            lines = [one.strip(FRAME).rstrip() for one in text.splitlines()]
            entries[line] = "\n".join([*lines, f"exit {result.exit_code}"])
    return entries
