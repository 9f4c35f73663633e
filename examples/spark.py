"""From Spark and back: a fit to what Spark has written, predictions on its workers.

    pip install pyspark setwise[frames,xgboost]
    python examples/spark.py

Spark writes the rows as Parquet, those of a set together; `sw.Files` reads
them, however many there are; `mapInPandas` predicts where the rows are. Nothing is
collected but the labels of the sets.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import setwise as sw

N, SIZE = 20_000, 20


def session() -> SparkSession:
    """Spark in this process, with two workers, at the loopback address."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.master("local[2]").getOrCreate()


def people(spark: SparkSession) -> DataFrame:
    """Rows of two features; only the mean income of each area is to be known."""
    area = (F.col("id") % (N // SIZE)).cast("int")
    rows = spark.range(N).withColumn("area", area)
    rows = rows.withColumn("age", 18 + 60 * F.rand(0))
    job = F.when(F.rand(1) < 0.5, "clerk").otherwise("doctor")
    rows = rows.withColumn("job", job)
    doctor = (F.col("job") == "doctor").cast("int")
    income = 0.1 * F.col("age") + 3 * doctor + F.randn(2)
    return rows.withColumn("income", income).cache()


def hand_over(rows: DataFrame, folder: Path) -> sw.Files:
    """Rows as Parquet, the rows of an area next to each other."""
    near = rows.repartitionByRange("area").sortWithinPartitions("area")
    near.write.mode("overwrite").parquet(str(folder))
    return sw.Files(folder, memory="500MB")


def predicted(rows: DataFrame, model: Path) -> DataFrame:
    """The rows with predictions of the workers, who load the model from a disk."""
    place = str(model)

    def predict(tables: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        est = sw.load(place)
        for table in tables:
            yield table.assign(guess=est.predict(table[[*est.feature_names_in_]]))

    columns = [f"`{name}` {kind}" for name, kind in rows.dtypes]
    return rows.mapInPandas(predict, ", ".join([*columns, "guess double"]))


def main() -> None:
    """The whole way, with what it found."""
    spark = session()
    with tempfile.TemporaryDirectory() as folder:
        rows = people(spark)
        means = rows.groupBy("area").agg(F.mean("income").alias("income"))
        known = means.toPandas()
        files = hand_over(rows.drop("income", "id"), Path(folder) / "rows")
        y = dict(zip(known.area, known.income, strict=True))
        seen = sw.Observations.from_groups(sw.Mean(), files["area"], y)
        est = sw.AggregateRegressor(learner="xgboost", random_state=0, verbose=0)
        est.fit(files.drop("area"), seen)
        est.save(Path(folder) / "model")
        found = predicted(rows, Path(folder) / "model")
        apart = F.col("guess") - F.col("income")
        error, spread = found.agg(F.mean(apart**2), F.var_pop("income")).first()
        print(f"Spark {spark.version}, {len(seen)} sets of {len(files)} rows")
        print(f"squared error {error:.2f}, variance of the targets {spread:.2f}")
    spark.stop()


if __name__ == "__main__":
    main()
