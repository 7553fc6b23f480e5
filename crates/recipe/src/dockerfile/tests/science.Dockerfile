FROM host
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ARG PANDAS
ARG EXTRA=""
RUN pip install "pandas==${PANDAS}" numpy scipy ${EXTRA}
ENV MPLBACKEND=Agg OMP_NUM_THREADS="4" DATA=/data
ADD ["data set.tar.gz", "${DATA}/"]
RUN <<EOF
set -e
# Kept: this is the script's.
python3 -c 'import pandas; print(pandas.__version__)'
EOF
RUN python3 <<'PY' && cat <<-END > /etc/motd
import matplotlib
print("$HOME")
PY
	welcome
	END
COPY <<one.py <<"two.py" /opt/scripts/
print("${DATA}")
one.py
print("${DATA}")
two.py
WORKDIR notebooks
STOPSIGNAL SIGINT
MAINTAINER somebody
CMD jupyter lab --ip=0.0.0.0
