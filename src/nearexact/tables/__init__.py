"""Models from tables: `fit` to a CSV or Parquet file or a data frame, `predict` another one. Needs the extra "data".

fitted = tables.fit("houses.csv", target="price", time_limit="5m")
print(fitted.summary)
fitted.save("model.nx")
tables.predict("model.nx", "new.csv", "out.parquet")
"""

from nearexact.tables.adding import Updated, update
from nearexact.tables.dialect import Spelling
from nearexact.tables.fitting import Fitted, check_one_target, fit
from nearexact.tables.predicting import Predicted, certify, load_with_recipe, predict, predict_frame, recipe_of
from nearexact.tables.recipe import Recipe
from nearexact.tables.summary import Summary

__all__ = [
    "Fitted",
    "Predicted",
    "Recipe",
    "Spelling",
    "Summary",
    "Updated",
    "certify",
    "check_one_target",
    "fit",
    "load_with_recipe",
    "predict",
    "predict_frame",
    "recipe_of",
    "update",
]
