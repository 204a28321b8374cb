"""`FederatedStream`: streams at many sites. A device loads `spec` and `parties`, without scikit-learn, pandas and pyarrow."""
